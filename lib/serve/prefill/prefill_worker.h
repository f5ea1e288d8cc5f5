// The prefill side of a request: reuses, computes and sends its KV.
// The worker locks or allocates blocks for the prompt, reuses what is cached here or in the pool,
// and computes the rest chunk by chunk. It sends each layer's KV to the blocks that a decode worker
// reserved while the next layer computes (serve/connector/kv_sender.h has the ways).
//
//   TxAllocate -> Prefill -> (queue) -> load -> compute and send -> KvReady -> TxCommit
//                     at any time -> Abort, the lease, or a failure: KvFailed
//
// This object has the messages, the requests, their ends and the state. Its parts:
//
//   prefill_run            runs the prompts
//   prefill_remote_prefix  TxAllocate may name another prefill worker that holds, or computes, more
//                          of the prompt: it reads that prefix while the request queues, and pins
//                          its own prefixes for others the same way
//   prefill_pipeline       of the head of a pipeline, whose engine has the first slice of the
//                          layers: directs the stages after it
//   prefill_shared         what they share; prefill_job has a request
//
// The decode side gets exactly one message about the end. Blocks are released once, when nothing
// reads or writes them any more, however the request ended.
//
// Thread: the loop's; KV is computed on a thread of its own.
// Source: Mooncake paper sections 3.1 (Figure 3), 5.3 (Figure 9: TxAllocate, TxCommit).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "serve/connector/store_connector.h"
#include "serve/kvcache/block_manager.h"
#include "serve/prefill/prefill_pipeline.h"
#include "serve/prefill/prefill_remote_prefix.h"
#include "serve/prefill/prefill_run.h"
#include "serve/prefill/prefill_shared.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/worker_core.h"
#include "xfer/engine.h"

namespace mc::serve {

class PrefillWorker final : private PrefillHost {
 public:
  // Registers its messages with `server`; `core` is shared with the other instance of the process,
  // if there is one. Errors: kNoSpace for a pool that does not fit; kInvalid.
  static Result<std::unique_ptr<PrefillWorker>> open(io::Loop& loop, xfer::Engine& transfer,
                                                     rpc::Server& server, const Engine& engine,
                                                     const PrefillConfig& config, Metrics& metrics,
                                                     std::shared_ptr<WorkerCore> core = {});
  ~PrefillWorker();
  PrefillWorker(const PrefillWorker&) = delete;
  PrefillWorker& operator=(const PrefillWorker&) = delete;

  // From now on, hands over requests that this process (`control`) decodes instead of sending them.
  void colocate(std::string control, OwnDecode::Adopt adopt);
  Result<rpc::Empty> abort(const Abort& m);

  // With what other conductors than this one gave it; empty: that is not asked.
  WorkerLoad load(const std::string& conductor = {}) const;
  const BlockManager& cache() const { return shared_.blocks(); }
  // Counts the leading blocks that can be reused here: cached, or in the pool. Runs `done` now or
  // on a later turn.
  void lookup(const std::vector<BlockHash>& hashes, std::function<void(size_t)> done);
  void on_state_changed(std::function<void()> callback) { on_state_changed_ = std::move(callback); }
  void drain(bool on = true) { draining_ = on; }                             // refuses new requests
  bool whole() const { return pipeline_ == nullptr || pipeline_->ready(); }  // all stages answer
  // Nothing is computed, delivered or awaited, and no put is in flight.
  bool idle() const {
    return shared_.jobs.size() == 0 && prefixes_.pinned() == 0 &&
           (pool_ == nullptr || pool_->putting() == 0);
  }
  Json state() const;  // for /state
  void update_metrics();

 private:
  PrefillWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server, const Engine& engine,
                const PrefillConfig& config, Metrics& metrics, std::shared_ptr<WorkerCore> core);
  // Messages.
  Result<TxAllocated> allocate(const TxAllocate& m, Time now);
  Result<> check(const TxAllocate& m) const;
  void prefill(const Prefill& m, const rpc::Call& call, const rpc::Reply<PrefillDone>& reply);
  Result<TxCommitted> commit(const TxCommit& m);
  // Ending.
  void fail_job(const PrefillJobPtr& job, Error error) override;
  void settle(const PrefillJobPtr& job) override;
  void end_committed(const PrefillJobPtr& job) override {
    (void)commit({job->tx, job->kv.request});
  }
  void resume() override { run_->advance(); }
  void tell_failed(const PrefillJob& job, const std::string& reason);
  rpc::Client* peer(const std::string& address) override;
  void tick();
  void state_changed() override;

  PrefillShared shared_;
  bool draining_ = false;
  std::map<std::string, std::unique_ptr<rpc::Client>> peers_;
  std::function<void()> on_state_changed_;
  io::Loop::Handle ticker_ = 0;
  RemotePrefixes prefixes_;
  std::unique_ptr<StoreConnector> pool_;    // nullptr: none
  std::unique_ptr<PipelineHead> pipeline_;  // nullptr: not the head of one
  std::unique_ptr<PrefillRun> run_;
};

}  // namespace mc::serve
