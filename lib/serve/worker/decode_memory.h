// Carries out what DecodeBlocks decides for a decode worker: moves the KV of preempted sequences.
// It copies KV to host memory and back, puts it into the pool and fetches it, or computes it again.
//
// The tokens are those of a sequence that was never preempted: all state of the sampling is in the
// sequence, and the KV that comes back is the KV that left.
//
// Thread: the loop's. Copies and computing run on the core's compute thread.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "io/loop.h"
#include "serve/batch/decode_blocks.h"
#include "serve/connector/store_connector.h"
#include "serve/runtime/sequence.h"
#include "serve/runtime/worker_core.h"
#include "serve/worker/kv_recompute.h"

namespace mc::serve {

struct DecodeMemoryOptions {
  std::string preempt = "auto";  // off: a reservation takes the blocks of prompt and answer
  double watermark = 0.01;       // share of the blocks that a reservation leaves free
  uint64_t swap_bytes = 0;       // host memory for the KV of preempted sequences
  double time_scale = 1;
};

class DecodeMemory : private KvMover {
 public:
  struct Hooks {
    std::function<void(const SequencePtr&)> unused;  // it ended, and its copy or computing is over
    std::function<void(const SequencePtr&, const std::string& why)> fail;
    std::function<void(const SequencePtr&)> fence;  // its blocks, against the prefill side
    std::function<void(const SequencePtr&)> alive;  // it waits: its conductor should know
    std::function<void()> step;                     // blocks came free, or a sequence is back
  };
  // All references outlive this.
  DecodeMemory(io::Loop& loop, WorkerCore& core, const Engine& engine, DecodeBatch& batch,
               const DecodeMemoryOptions& options, Metrics& metrics, Hooks hooks);
  void use(StoreConnector* pool) { pool_ = pool; }  // outlives this; nullptr: none

  Result<> reserve(const SequencePtr& s, Time now) { return blocks_.reserve(s, now); }
  // Of the running sequences, those that have blocks for their next token. May preempt others, but
  // not for guesses: those take blocks that are free beside the headroom, or are dropped.
  std::vector<SequencePtr> grow(std::vector<SequencePtr> running);
  void bring_back() { blocks_.bring_back(loop_.now()); }
  void release(const SequencePtr& s);  // it ended: its blocks are free
  // Often: says that the waiting ones live, and tries again.
  void tick(Time now);

  BlockId id(const Sequence& s, size_t block) const { return blocks_.id(s, block); }
  uint64_t growth() const { return blocks_.growth(); }  // as in WorkerLoad
  KvRecompute& recompute() { return recompute_; }

 private:
  std::byte* memory(BlockId block) override { return core_.block(block); }
  bool shed() override { return pool_ != nullptr && pool_->shed(); }
  void fence(const DecodeKvPtr& s) override { hooks_.fence(sequence(s)); }
  double compute_seconds(size_t begin, size_t end) const override {
    return recompute_.seconds(begin, end);
  }
  bool has_pool() const override { return pool_ != nullptr; }
  double fetch_seconds(uint64_t bytes) const override {
    return pool_->rates().fetch_seconds({{{}, bytes}});
  }
  void preempted(const DecodeKvPtr& s, KvWay way) override;
  bool copy_out(const DecodeKvPtr& s) override;
  void put_out(const DecodeKvPtr& s) override;
  void copy_in(const DecodeKvPtr& s, size_t first) override;
  void fetch(const DecodeKvPtr& s, size_t first) override;
  void compute(const DecodeKvPtr& s, size_t begin) override;
  void back(const SequencePtr& s, const Result<>& outcome);
  static SequencePtr sequence(const DecodeKvPtr& s) {
    return std::static_pointer_cast<Sequence>(s);
  }

  io::Loop& loop_;
  WorkerCore& core_;
  const Engine& engine_;
  DecodeBatch& batch_;
  const Hooks hooks_;
  StoreConnector* pool_ = nullptr;
  KvRecompute recompute_;
  DecodeBlocks blocks_;
  Time alive_at_{};
  Counter &preemptions_, &to_host_, &to_pool_, &to_compute_;
  Gauge& preempted_;
};

}  // namespace mc::serve
