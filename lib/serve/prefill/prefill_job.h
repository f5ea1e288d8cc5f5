// A request on a prefill worker, from its allocation until its blocks are released.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/server.h"
#include "serve/batch/batcher.h"
#include "serve/connector/kv_sender.h"
#include "serve/kvcache/block_manager.h"
#include "serve/prefill/layer_load.h"
#include "serve/protocol/messages.h"
#include "telemetry/step_spans.h"
#include "telemetry/tracer.h"

namespace mc::serve {

enum class PrefillStage : uint8_t {
  kAllocated,
  kQueued,
  kLoading,
  kLoaded,
  kComputing,
  kSending,
  kDelivered
};

// Who decodes it.
enum class DeliverTo : uint8_t { kDecodeWorker, kThisProcess };

// Where KV of its prefix comes from while it waits for some. kAnother: the same KV comes for
// another prompt that begins like it.
enum class FetchState : uint8_t { kNone, kPool, kPeer, kAnother };

// What the stages of a pipeline after the head have of it. kLost: one failed, and may still send.
enum class PipelinePart : uint8_t { kNone, kBegun, kLost };

enum class EndCause : uint8_t { kFailure, kAbort };  // kAbort: by its conductor

struct PrefillJob {
  TxId tx = 0;
  PrefillStage stage = PrefillStage::kAllocated;
  KvRoute kv;
  std::vector<int32_t> prompt;
  std::string conductor;
  int64_t priority = 0;
  uint64_t number = 0;          // of its conductor's decision; 0: not told
  uint64_t context_blocks = 0;  // serve/protocol/cache_control.h
  Duration keep{};
  bool ephemeral = false;
  std::vector<BlockHash> hashes;   // of its full blocks
  std::vector<BlockHash> parents;  // of each block: the digest it chains on
  DeliverTo deliver_to = DeliverTo::kDecodeWorker;
  std::optional<rpc::Reply<PrefillDone>> reply;
  PrefillChunk chunk;
  std::shared_ptr<Activations> activations;   // of the chunk
  uint32_t layers_left = 0, layers_sent = 0;  // of the chunk
  FetchState fetch = FetchState::kNone;
  size_t peer_blocks = 0;  // that are here once another prefill worker's have come
  // Of the prefix, while layers of it may still come; nullptr: all of its KV is here.
  std::shared_ptr<LayerLoad> load;
  PrefillDone done;
  size_t published = 0;          // blocks
  uint32_t busy = 0;             // computing, sending and fetches that use its blocks
  std::optional<Error> failure;  // the first cause; it ends when `busy` is 0
  EndCause cause = EndCause::kFailure;
  bool committed_early = false;  // before it is delivered: ends then
  PipelinePart pipeline = PipelinePart::kNone;
  Reservation target;      // for the other stages of a pipeline
  std::string cache_salt;  // for them too
  // Of each other stage the blocks whose part it put into the pool.
  std::map<uint32_t, std::vector<uint32_t>> pooled;
  Time queued{}, started{}, loaded{}, computing{}, computed{};
  Duration waited{0};                 // from loaded until its turn came: others computed
  Duration paused{0};                 // between its chunks: others computed
  telemetry::OpenSpan span;           // from queued on
  telemetry::OpenSpan fetch_span;     // below it: of reused KV, until it computes
  std::shared_ptr<StepTrace> steps;   // below it: what else it asks of the pool
  telemetry::OpenSpan transfer_span;  // below it: from the first block sent until all are there

  void end_spans(Time now);  // it is delivered, or has failed
};
using PrefillJobPtr = std::shared_ptr<PrefillJob>;

// The requests of a prefill worker, by transaction and by name.
class PrefillJobs {
 public:
  using ByTx = std::unordered_map<TxId, PrefillJobPtr>;

  void add(const PrefillJobPtr& job);
  void erase(const PrefillJob& job);
  PrefillJobPtr find(TxId tx) const;  // nullptr: none
  PrefillJobPtr find(const std::string& request) const;
  bool contains(const PrefillJob& job) const { return by_tx_.contains(job.tx); }
  size_t size() const { return by_tx_.size(); }
  ByTx::const_iterator begin() const { return by_tx_.begin(); }
  ByTx::const_iterator end() const { return by_tx_.end(); }

  // KV of the job's prefix comes from `from`, until fetched().
  void fetch(const PrefillJobPtr& job, FetchState from);
  void fetched(const PrefillJobPtr& job);
  const std::vector<PrefillJobPtr>& fetching() const { return fetching_; }

 private:
  ByTx by_tx_;
  std::unordered_map<std::string, TxId> by_request_;
  std::vector<PrefillJobPtr> fetching_;
};

}  // namespace mc::serve
