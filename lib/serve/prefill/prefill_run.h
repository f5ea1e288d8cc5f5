// Runs prompts: loads reused KV, computes the rest, sends it, notifies the decode side.
// It computes chunk by chunk and layer by layer, and sends each layer while the next one computes.
// Prompts run in the order of PrefillConfig::order; the sending of one overlaps the computing of
// the next. While the reused KV of one is loaded, others compute.
//
//   add -> (queue) -> prepare -> fetch, loaded -> begin -> chunks -> deliver -> delivered
//
// Thread: the loop's; KV is computed on the core's compute thread.
#pragma once
#include <functional>
#include <memory>

#include "serve/batch/batcher.h"
#include "serve/connector/kv_sender.h"
#include "serve/connector/store_connector.h"
#include "serve/prefill/prefill_pipeline.h"
#include "serve/prefill/prefill_remote_prefix.h"
#include "serve/prefill/prefill_shared.h"

namespace mc::serve {

class PrefillRun {
 public:
  // Errors: kInvalid for chunks that are not whole blocks.
  static Result<PrefillQueue> make_queue(const Engine& engine, const PrefillConfig& config);
  // All outlive the run; nullptr: no pool, no pipeline. Errors: kInvalid for a connector that needs
  // a pool.
  static Result<std::unique_ptr<PrefillRun>> open(PrefillShared& shared, PrefillQueue queue,
                                                  RemotePrefixes& prefixes, StoreConnector* pool,
                                                  PipelineHead* pipeline);

  // Its Prefill came, its transaction runs, and its first `here` blocks are here.
  void add(const PrefillJobPtr& job, size_t here);
  void remove(const PrefillJob& job) { queue_.remove(job.kv.request); }  // it failed
  // Another prefill worker's blocks came: of the prompt so many are valid now.
  void prefix_came(const PrefillJobPtr& job, size_t valid);
  void advance();  // computes what can be computed
  void delivered(const PrefillJobPtr& job);
  const PrefillQueue& queue() const { return queue_; }

 private:
  PrefillRun(PrefillShared& shared, PrefillQueue queue, RemotePrefixes& prefixes,
             StoreConnector* pool, PipelineHead* pipeline);
  size_t reusable(const PrefillJob& job) const;
  size_t valid_blocks(const PrefillJob& job) const;
  void hint(const PrefillJob& job, size_t here);
  size_t loads() const;
  bool prepare(const PrefillJobPtr& job);
  bool fetch(const PrefillJobPtr& job);
  void arrived();
  void loaded(const PrefillJobPtr& job, size_t fetched);
  void begin(const PrefillJobPtr& job);
  void catch_up(const PrefillJobPtr& job);
  void begin_chunk(const PrefillJobPtr& job, const PrefillChunk& chunk);
  void compute(const PrefillJobPtr& job, uint32_t layer, Time due,
               const std::shared_ptr<Activations>& activations);
  void layer_computed(const PrefillJobPtr& job, uint32_t layer);
  void chunk_computed(const PrefillJobPtr& job);
  void chunk_through(const PrefillJobPtr& job, const PrefillChunk& chunk);
  void publish(const PrefillJobPtr& job, size_t upto);
  void send(const PrefillJobPtr& job, size_t first, size_t last, uint64_t at, uint64_t bytes);
  void deliver(const PrefillJobPtr& job);
  void after(Time when, std::function<void()> task);

  PrefillShared& shared_;
  const Timing timing_;
  PrefillQueue queue_;
  TxId computed_last_ = 0;  // whose chunk was the last to begin
  RemotePrefixes& prefixes_;
  StoreConnector* const pool_;    // nullptr: none
  PipelineHead* const pipeline_;  // nullptr: not the head of one
  std::unique_ptr<KvSender> sender_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers check it
};

}  // namespace mc::serve
