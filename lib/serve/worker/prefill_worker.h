// The prefill side of a request: reuses, computes and sends its KV.
// The worker locks or allocates blocks for the prompt, reuses what is cached here or in the pool,
// and computes the rest chunk by chunk. It sends each layer's KV to the blocks that a decode worker
// reserved while the next layer computes (serve/connector/kv_sender.h has the ways).
//
//   TxAllocate -> Prefill -> (queue) -> load -> compute and send -> KvReady -> TxCommit
//                     at any time -> Abort, the lease, or a failure: KvFailed
//
// TxAllocate may name another prefill worker that holds, or computes, more of the prompt. This
// worker reads that prefix while the request queues (prefix_fetch.h), and pins its own prefixes for
// others the same way (pinned_prefixes.h).
//
// The head of a pipeline does the same with the first slice of the layers, and directs the stages
// after it (prefill_pipeline.cc). Their blocks correspond to its own, so it decides alone which are
// reused and when they are free.
//
// The decode side gets exactly one message about the end. Blocks are released once, when nothing
// reads or writes them any more, however the request ended. Prompts run in the order of
// PrefillConfig::order; the sending of one overlaps the computing of the next.
//
// Thread: the loop's; KV is computed on a thread of its own.
// Source: Mooncake paper sections 3.1 (Figure 3), 5.3 (Figure 9: TxAllocate, TxCommit).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "serve/connector/kv_pool.h"
#include "serve/connector/kv_sender.h"
#include "serve/connector/store_connector.h"
#include "serve/kvcache/block_manager.h"
#include "serve/pipeline/pipeline_chain.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/batcher.h"
#include "serve/runtime/trace_events.h"
#include "serve/runtime/worker_core.h"
#include "serve/worker/layer_load.h"
#include "serve/worker/pinned_prefixes.h"
#include "telemetry/step_spans.h"
#include "telemetry/tracer.h"
#include "xfer/engine.h"

namespace mc::serve {

struct PrefillConfig {
  uint64_t epoch = 0;  // of its heartbeats: larger than an earlier process's
  uint32_t blocks = 0;
  uint32_t chunk_tokens = 1024;
  std::string order = "fcfs";  // of the queue: sched::kPrefillOrders
  double ageing = 0.1;         // of srpf
  double time_scale = 1;
  std::string pool_reuse = "auto";  // auto: if fetching is predicted faster; always; never
  // Computing begins with the first layers of a prefix from the pool; else when all are here.
  bool pool_layers = false;
  Connector connector = Connector::kMulti;
  bool layerwise = true;                             // false: sends all when all is computed
  Duration send_timeout = std::chrono::seconds(10);  // of a layer, or of all at the end
  Duration peer_budget = std::chrono::seconds(5);    // KvReady, KvFailed
  store::ClientOptions store;                        // master empty: no pool
  OpenPool pool = open_store_pool;
  TraceEvents* trace = nullptr;         // outlives the worker; nullptr: no trace
  telemetry::Tracer* tracer = nullptr;  // outlives the worker; nullptr: no spans
  // For the head of a pipeline, whose engine has the first slice of the layers: control addresses
  // of the other stages in order (empty: no pipeline), the whole model's fingerprint, and how long
  // a stage may be silent.
  std::vector<std::string> stages;
  std::string fingerprint;
  Duration pipeline_patience = std::chrono::seconds(3);
};

struct PrefillCounters {
  Counter &prompts, &prompt_tokens, &queries, &hits, &pool_tokens, &failed, &aborted, &computed;
  Counter &peer_tokens, &peer_failures, &pinned_blocks, &pins_expired, &hints;
  BucketHistogram &queue, &load, &prefill, &transfer;
  Gauge &running, &waiting, &usage;
};

class PrefillWorker {
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

  // Hands a request's blocks to the decode instance of this process, which keeps them as they are.
  using Adopt = std::function<Result<>(const std::string& request, uint64_t guard,
                                       const std::vector<BlockId>& blocks)>;
  // From now on, hands over requests that this process (`control`) decodes instead of sending them.
  void colocate(std::string control, Adopt adopt);
  Result<rpc::Empty> abort(const Abort& m);

  // With what other conductors than this one gave it; empty: that is not asked.
  WorkerLoad load(const std::string& conductor = {}) const;
  const BlockManager& cache() const { return blocks_; }
  // Counts the leading blocks that can be reused here: cached, or in the pool. Runs `done` now or
  // on a later turn.
  void lookup(const std::vector<BlockHash>& hashes, std::function<void(size_t)> done);
  void on_state_changed(std::function<void()> callback) { on_state_changed_ = std::move(callback); }
  void drain(bool on = true) { draining_ = on; }                       // refuses new requests
  bool whole() const { return chain_ == nullptr || chain_->ready(); }  // all stages answer
  // Nothing is computed, delivered or awaited, and no put is in flight.
  bool idle() const {
    return jobs_.empty() && pinned_.size() == 0 && (pool_ == nullptr || pool_->putting() == 0);
  }
  Json state() const;  // for /state
  void update_metrics();

 private:
  enum class Stage : uint8_t {
    kAllocated,
    kQueued,
    kLoading,
    kLoaded,
    kComputing,
    kSending,
    kDelivered
  };
  struct Job {
    TxId tx = 0;
    Stage stage = Stage::kAllocated;
    KvRoute kv;
    std::vector<int32_t> prompt;
    std::string conductor;
    int64_t priority = 0;
    uint64_t context_blocks = 0;  // serve/protocol/cache_control.h
    Duration keep{};
    bool ephemeral = false;
    std::vector<BlockHash> hashes;   // of its full blocks
    std::vector<BlockHash> parents;  // of each block: the digest it chains on
    std::optional<rpc::Reply<PrefillDone>> reply;
    PrefillChunk chunk;
    std::shared_ptr<Activations> activations;   // of the chunk
    uint32_t layers_left = 0, layers_sent = 0;  // of the chunk
    // Of the prefix, while layers of it may still come; nullptr: all of its KV is here.
    std::shared_ptr<LayerLoad> load;
    PrefillDone done;
    size_t published = 0;          // blocks
    bool own = false;              // decoded by this process
    uint32_t busy = 0;             // computing, sending and fetches that use its blocks
    bool waits_for_load = false;   // or fetch, of a prompt that begins like it
    std::optional<Error> failure;  // the first cause; ends when `busy` is 0
    bool aborted = false;          // by the conductor
    bool committed_early = false;  // before it is delivered: ends then
    Reservation target;            // for the other stages of a pipeline
    std::string cache_salt;        // for them too
    bool in_pipeline = false;      // the other stages know it
    // Of each other stage the blocks whose part it put into the pool.
    std::map<uint32_t, std::vector<uint32_t>> pooled;
    bool lost = false;  // a stage failed: it may still be sending
    Time queued{}, started{}, computing{}, computed{};
    telemetry::OpenSpan span;          // from queued on
    telemetry::OpenSpan fetch;         // below it: of reused KV from the pool, until it computes
    std::shared_ptr<StepTrace> steps;  // below it: what else it asks of the pool
    telemetry::OpenSpan transfer;      // below it: from the first block sent until all are there
    void end_spans(Time now);
  };
  using JobPtr = std::shared_ptr<Job>;

  PrefillWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server, const Engine& engine,
                const PrefillConfig& config, Metrics& metrics, std::shared_ptr<WorkerCore> core,
                PrefillQueue queue);
  // Messages.
  Result<TxAllocated> allocate(const TxAllocate& m, Time now);
  Result<> check(const TxAllocate& m) const;
  bool is_own(const Reservation& target) const;
  JobPtr find(TxId tx, const std::string& request) const;  // tx 0: by request
  void prefill(const Prefill& m, const rpc::Call& call, const rpc::Reply<PrefillDone>& reply);
  void hint(const Job& job, size_t here);
  Result<TxCommitted> commit(const TxCommit& m);
  // Between prefill workers, in prefill_remote_prefix.cc.
  Result<TxAllocated> pin_for_peer(const TxAllocate& m, Time now);
  size_t coming_blocks(std::span<const BlockHash> wanted, size_t have) const;
  void fetch_remote_prefix(const JobPtr& job, const RemotePrefix& prefix);
  void remote_prefix_fetched(const JobPtr& job, const std::vector<BlockId>& read, size_t first);
  // Running, in prefill_run.cc.
  void advance();
  bool prepare(const JobPtr& job);
  void arrived();
  bool fetch(const JobPtr& job);
  void loaded(const JobPtr& job, size_t fetched);
  void begin(const JobPtr& job);
  void begin_chunk(const JobPtr& job, const PrefillChunk& chunk);
  void compute(const JobPtr& job, uint32_t layer, Time due,
               const std::shared_ptr<Activations>& activations);
  void layer_computed(const JobPtr& job, uint32_t layer);
  void trace(const char* track, const std::string& name, const Job& job, Time begin, Time end);
  void chunk_computed(const JobPtr& job);
  void chunk_through(const JobPtr& job, const PrefillChunk& chunk);
  void publish(const JobPtr& job, size_t upto);
  void send(const JobPtr& job, size_t first, size_t last, uint64_t at, uint64_t bytes);
  void deliver(const JobPtr& job);
  void delivered(const JobPtr& job);
  // Of the head of a pipeline, in prefill_pipeline.cc.
  Result<> open_pipeline(Metrics& metrics);
  void pipeline_lost(const Error& why);
  bool clear_for_pipeline();
  void begin_in_pipeline(const JobPtr& job, size_t reused);
  void chunk_to_pipeline(const JobPtr& job);
  bool pipeline_answered(const JobPtr& job, const Result<PipelineDone>& reply);  // false: it failed
  void fetch_in_pipeline(const JobPtr& job, size_t here, size_t fetched);
  void put_in_pipeline(const Job& job, size_t first, size_t last);
  // Ending.
  void fail_job(const JobPtr& job, Error error);
  void settle(const JobPtr& job);  // of a failed job: ends it when nothing is busy
  void tell_failed(const Job& job, const std::string& reason);
  rpc::Client* peer(const std::string& address);
  void place_blocks(Job& job);
  void tick();
  void state_changed();
  void after(Time when, std::function<void()> task);

  io::Loop& loop_;
  const Engine& engine_;
  const PrefillConfig config_;
  const Timing timing_;
  const std::shared_ptr<WorkerCore> core_;
  const uint64_t block_bytes_;
  const KvShape shape_;
  BlockManager& blocks_;  // of the core
  PrefillQueue queue_;
  std::unordered_map<TxId, JobPtr> jobs_;
  std::unordered_map<std::string, TxId> by_request_;
  std::vector<JobPtr> loading_, fetching_;  // reused KV from the pool; from another worker
  bool draining_ = false;
  size_t in_pipeline_ = 0;  // chunks that stages have
  std::map<std::string, std::unique_ptr<rpc::Client>> peers_;
  std::function<void()> on_state_changed_;
  std::string control_;  // of this process, if it decodes too
  Adopt adopt_;
  io::Loop::Handle ticker_ = 0;
  PrefillCounters counters_;
  PinnedPrefixes pinned_;
  std::map<std::string, Gauge*> block_gauges_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers check it
  std::unique_ptr<KvSender> sender_;
  // Last: users of blocks are destroyed before the blocks.
  std::unique_ptr<StoreConnector> pool_;
  KvTransfer transfer_;
  std::unique_ptr<PipelineChain> chain_;  // nullptr: not the head of a pipeline
};

}  // namespace mc::serve
