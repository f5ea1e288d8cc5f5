// The decode side of a request: reserves blocks, verifies KV, generates tokens.
// The batch changes between steps. Each step sends one message of tokens to each conductor.
//
//   Reserve -> (layers are written here, or offered and read) -> KvReady -> (blocks are fetched
//           from the pool) -> verify -> batch -> tokens
//
// KV that has not arrived, or does not verify, is never in a batch: its request ends as "error"
// with the reason. With recompute_after this worker computes the prompt instead, as well as blocks
// that the pool lost.
//
// Answers take blocks as they grow, and the youngest make room for the oldest (decode_memory.h).
//
// The KV of generated tokens is kept for later prompts that begin with them, as the next turn of a
// chat does: full blocks go to the pool, and where this process computes prompts too, they stay.
//
// With `speculate`, a sequence's next tokens are guessed from its text (prompt_lookup.h) and
// checked in its step. Its tokens are those of one step each. Guesses take blocks that nobody else
// needs.
//
// Tokens that its conductor does not take are sent again (token_outbox.h); decoding goes on. After
// conductor_timeout its requests end.
//
// If a request is aborted while its prefill side may still be writing, its blocks are quarantined:
// the guard word advances, and the blocks are reused only when that side confirmed the end, or when
// its time is over and they are fenced (xfer::Engine::fence).
//
// Thread: the loop's; token work runs on a compute thread of its own.
// Source: Mooncake paper section 3.1 (steps 3 and 4 of Figure 3).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/metrics.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "serve/batch/batcher.h"
#include "serve/connector/kv_transfer.h"
#include "serve/connector/store_connector.h"
#include "serve/kvcache/block_manager.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/decode_step.h"
#include "serve/runtime/guide.h"
#include "serve/runtime/sequence.h"
#include "serve/runtime/trace_events.h"
#include "serve/runtime/worker_core.h"
#include "serve/worker/decode_memory.h"
#include "serve/worker/token_sender.h"
#include "telemetry/step_spans.h"
#include "telemetry/tracer.h"
#include "xfer/engine.h"

namespace mc::serve {

struct DecodeConfig {
  uint64_t epoch = 0;  // as in PrefillConfig; 0: the transfer engine's generation
  uint32_t blocks = 0;
  double time_scale = 1;
  std::string preempt = "auto";  // as in DecodeMemoryOptions, as the next two
  double watermark = 0.01;
  uint64_t swap_bytes = 1 << 30;
  Duration tbt_slo{};          // 0: none
  Duration kv_deadline{};      // KV later than this fails; 0: only what the request says
  Duration recompute_after{};  // KV of another process later than this is computed here; 0: never
  Duration peer_timeout = std::chrono::seconds(3);        // of the transfer engine
  Duration token_retry = std::chrono::seconds(2);         // tokens not taken by then are sent again
  Duration conductor_timeout = std::chrono::seconds(60);  // one that takes nothing is gone then
  bool cache_answers = true;                              // the KV of generated tokens
  uint32_t speculate = 0;               // guesses a step, at most PromptLookup::kMost; 0: none
  store::ClientOptions store;           // master empty: no pool
  TraceEvents* trace = nullptr;         // outlives the worker; nullptr: no trace
  telemetry::Tracer* tracer = nullptr;  // outlives the worker; nullptr: no spans
  Guides::OpenTokenizer tokenizer;      // for constrained answers; none: they are refused
};

class DecodeWorker {
 public:
  // Registers its messages with `server`; `core` is shared with the other instance of the process,
  // if there is one. Errors: kNoSpace for a pool that does not fit.
  static Result<std::unique_ptr<DecodeWorker>> open(io::Loop& loop, xfer::Engine& transfer,
                                                    rpc::Server& server, const Engine& engine,
                                                    const DecodeConfig& config, Metrics& metrics,
                                                    std::shared_ptr<WorkerCore> core = {});
  ~DecodeWorker();

  // From now on, reserves no blocks for prompts that this process computes: adopt() gives such a
  // request the prefill side's blocks, and pins them until the request ends.
  void colocate() { colocated_ = true; }
  Result<> adopt(const std::string& request, uint64_t guard, const std::vector<BlockId>& blocks);
  Result<rpc::Empty> abort(const Abort& m);

  // With what other conductors than this one gave it; empty: that is not asked.
  WorkerLoad load(const std::string& conductor = {}) const;
  void drain(bool on = true) { draining_ = on; }  // refuses new reservations
  bool idle() const {
    const bool puts = pool_ != nullptr && pool_->queued() + pool_->putting() > 0;
    return sequences_.empty() && !puts && to_conductors_.settled();
  }

 private:
  DecodeWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server, const Engine& engine,
               const DecodeConfig& config, Metrics& metrics, std::shared_ptr<WorkerCore> core);
  Result<Reservation> reserve(const Reserve& m, const rpc::Call& call);
  Result<rpc::Empty> kv_ready(const KvReady& m, const rpc::Call& call);
  Result<rpc::Empty> kv_failed(const KvFailed& m);
  Result<> check(const Reserve& m) const;
  // KV that arrives, in decode_receive.cc.
  void offered(const KvOffer& m, const rpc::Reply<rpc::Empty>& reply);
  Result<SequencePtr> find_offered(const KvOffer& m) const;
  void fetch(const SequencePtr& s, const KvReady& m);
  void verify(const SequencePtr& s);
  void verified(const SequencePtr& s, uint64_t bad_blocks);
  void join(const SequencePtr& s);
  void recompute(const SequencePtr& s, size_t begin);
  void step();
  void run(std::vector<SequencePtr> batch);
  void stepped(DecodeStep& step, Time start);
  void deliver(DecodeStep& step);
  void fail_sequence(const SequencePtr& s, const std::string& why, uint32_t kv_errors = 0);
  void end(const SequencePtr& s);  // out of the batch; freed when nothing uses its blocks
  void try_free(const SequencePtr& s);
  void quarantine(const SequencePtr& s);
  void cache_answer(const Sequence& s);
  void quarantine_over(const std::string& request, uint64_t guard,
                       std::vector<xfer::FencedRange> ranges);
  void expire();  // what is late, and the requests of conductors that are gone
  void after(Time when, std::function<void()> task);
  void gauge();

  io::Loop& loop_;
  xfer::Engine& transfer_;
  const std::string control_;
  const Engine& engine_;
  const DecodeConfig config_;
  uint64_t epoch_, next_guard_;
  const std::shared_ptr<WorkerCore> core_;
  BlockManager& blocks_;  // of the core
  const KvShape shape_;
  DecodeBatch batch_;
  bool stepping_ = false, draining_ = false, colocated_ = false;
  std::vector<size_t> free_slots_;
  std::unordered_map<std::string, SequencePtr> sequences_;
  TokenSender to_conductors_;
  io::Loop::Handle ticker_ = 0;
  std::map<std::string, Gauge*> block_gauges_;
  Gauge &running_, &waiting_, &usage_;
  Counter &generated_, &guessed_, &accepted_, &kv_errors_, &failed_, &recomputed_, &fetched_,
      &answer_blocks_;
  BucketHistogram& step_seconds_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers check it
  std::unique_ptr<StoreConnector> pool_;
  KvTransfer pulls_;
  DecodeMemory memory_;
  Guides guides_;
};

}  // namespace mc::serve
