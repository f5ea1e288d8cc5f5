// The head of a pipeline: tells the stages after it what to load, compute, put and send.
// Their blocks correspond to its own, so it decides alone which are reused and when they are free.
// If a stage is gone, all requests fail with the cause, and the pipeline begins again with an empty
// cache.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <memory>

#include "base/json_fwd.h"
#include "serve/pipeline/pipeline_chain.h"
#include "serve/prefill/prefill_shared.h"

namespace mc::serve {

class PipelineHead {
 public:
  // Requires: stages in the config. Errors: kInvalid: a malformed address, or blocks too large for
  // messages between stages.
  static Result<std::unique_ptr<PipelineHead>> open(PrefillShared& shared, Metrics& metrics);

  bool ready() const { return chain_->ready(); }  // all stages answer
  // One chunk for each stage and one in transit keep all stages busy.
  bool takes_chunk() const { return chain_->ready() && chunks_ <= chain_->processes(); }

  // A prompt whose first `reused` blocks are in all stages. `done`: all of its KV is sent.
  void begin(const PrefillJobPtr& job, size_t reused, std::function<void()> done);
  // The job's chunk and its activations. `through`: all stages have computed it. Neither this nor
  // begin's `done` runs for a request that failed.
  void send_chunk(const PrefillJobPtr& job, std::function<void(const PrefillChunk&)> through);
  // The head got `fetched` blocks of the prompt from the pool, from block `here` on. `done`: of
  // those so many are in every stage.
  void fetch(const PrefillJobPtr& job, size_t here, size_t fetched,
             std::function<void(size_t)> done);
  // Blocks for the pool. They are pinned until every stage has put its part or given it up.
  void put(const PrefillJob& job, size_t first, size_t last);
  void end(const PrefillJob& job);  // it failed: stages that have it drop it
  Json state() const;               // for /state

 private:
  explicit PipelineHead(PrefillShared& shared) : shared_(shared) {}
  void lost(const Error& why);
  bool clear();
  bool answered(const PrefillJobPtr& job, const Result<PipelineDone>& reply);  // false: it failed

  PrefillShared& shared_;
  size_t chunks_ = 0;  // that stages have
  std::unique_ptr<PipelineChain> chain_;
};

}  // namespace mc::serve
