// The head's connection to the pipeline: starts it, monitors every stage, calls the first.
// The messages are in serve/protocol/pipeline_messages.h. If one stage fails, the whole pipeline is
// lost: calls in flight end with the cause, the owner drops its cache and the requests that the
// stages knew, and then the pipeline starts again.
//
// Errors: kInvalid for a malformed address.
// Thread: the loop's.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "serve/pipeline/pipeline_link.h"
#include "serve/protocol/pipeline_messages.h"

namespace mc::serve {

struct PipelineChainConfig {
  std::vector<std::string> stages;  // control addresses after the head, in order
  std::string fingerprint;          // of the whole model
  uint32_t blocks = 0;              // in each stage
  uint32_t first_layer = 0;         // of the first stage after the head
  uint64_t seed = 0;                // differs in each process
  Duration ping = std::chrono::milliseconds(200);
  Duration patience = std::chrono::seconds(3);  // with a stage that does not answer
  Duration work = std::chrono::minutes(10);     // with a chunk, while stages answer pings
};

class PipelineChain {
 public:
  struct Owner {
    std::function<void(const Error&)> lost;  // before the calls in flight end
    // Before the pipeline starts. False while blocks are in use; else the cache is empty now.
    std::function<bool()> clear;
    std::function<void()> began;
  };
  static Result<std::unique_ptr<PipelineChain>> open(io::Loop& loop, PipelineChainConfig config,
                                                     Owner owner, Metrics& metrics);
  ~PipelineChain();
  PipelineChain(const PipelineChain&) = delete;
  PipelineChain& operator=(const PipelineChain&) = delete;

  bool ready() const { return ready_; }
  const std::string& trouble() const { return trouble_; }  // why not; empty: not started yet
  size_t processes() const { return config_.stages.size() + 1; }
  // Runs `done` once. An error means that the pipeline is lost.
  template <class M>
  void call(M message, std::function<void(const Result<typename M::Reply>&)> done) {
    message.pipeline = pipeline_;
    link_->call<M>(
        message, config_.work,
        [this, of = pipeline_, done = std::move(done)](const Result<typename M::Reply>& reply) {
          if (!reply && of == pipeline_) lose(reply.error());
          done(reply);
        });
  }

 private:
  PipelineChain(io::Loop& loop, PipelineChainConfig config, Owner owner, Metrics& metrics);
  void tick();
  void begin();
  void lose(const Error& why);

  io::Loop& loop_;
  const PipelineChainConfig config_;
  const Owner owner_;
  bool ready_ = false, asking_ = false;
  uint64_t pipeline_ = 0, begun_ = 0;
  std::string trouble_;
  io::Loop::Handle ticker_ = 0;
  Gauge& alive_;
  Counter& lost_;
  std::unique_ptr<PipelineLink> link_;
};

}  // namespace mc::serve
