// The KV blocks of a decode worker's sequences. A sequence takes blocks as it grows.
//
// Full blocks of prompts are shared: a prompt that begins as another one has its blocks, which stay
// cached after their last sequence. Nothing writes into a shared block.
//
// A reservation takes the blocks of its prompt only, and leaves a watermark of blocks free. When a
// sequence needs a block and none is left, the youngest sequence is preempted: it leaves the batch
// and gives its blocks away. Its KV is copied to host memory, or put into the pool, or computed
// again later, whichever is predicted to be the fastest. It comes back, the oldest first, when its
// blocks fit beside the watermark. Until then reservations leave room for it, too.
//
// Nothing waits for ever: a sequence is preempted for older ones only, so the oldest always goes
// on, and a request that the whole pool could not hold is refused when it comes. Blocks into which
// a prefill side may still write are fenced before others get them.
//
// The tokens are those of a sequence that was never preempted: all state of the sampling is in the
// sequence, and the KV that comes back is the KV that left.
//
// Thread: the loop's. Copies and computing run on the core's compute thread.
// Source: vLLM (SOSP 2023) section 4.5, swapping and recomputation.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "io/loop.h"
#include "serve/connector/store_connector.h"
#include "serve/runtime/batcher.h"
#include "serve/runtime/sequence.h"
#include "serve/runtime/worker_core.h"
#include "serve/worker/kv_recompute.h"

namespace mc::serve {

inline const std::vector<std::string> kPreemptModes = {"auto", "swap", "recompute", "off"};

struct DecodeMemoryOptions {
  std::string preempt = "auto";  // off: a reservation takes the blocks of prompt and answer
  double watermark = 0.01;       // share of the blocks that a reservation leaves free
  uint64_t swap_bytes = 0;       // host memory for the KV of preempted sequences
  double time_scale = 1;
  bool grow() const { return preempt != "off"; }
};

class DecodeMemory {
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

  // Blocks for a prompt. Gives `s` its age. Errors: kInvalid: the pool is too small for prompt and
  // answer; kNoSpace: not now.
  Result<> reserve(const SequencePtr& s, Time now);
  // Of the running sequences, those that have blocks for their next token. May preempt others, but
  // not for guesses: those take blocks that are free beside the headroom, or are dropped.
  std::vector<SequencePtr> grow(std::vector<SequencePtr> running);
  // Begins to bring back preempted sequences that fit now. Call it between steps.
  void bring_back();
  void release(const SequencePtr& s);  // it ended: its blocks are free
  // Often: says that the waiting ones live, and tries again.
  void tick(Time now);

  // The id of a block of a sequence that has its blocks.
  BlockId id(const Sequence& s, size_t block) const;
  uint64_t growth() const { return options_.grow() ? 1 + headroom() : 0; }  // as in WorkerLoad
  KvRecompute& recompute() { return recompute_; }

 private:
  enum class Way : uint8_t { kHost, kPool, kRecompute };
  uint64_t blocks_of(uint64_t tokens) const {
    return (tokens + engine_.block_tokens() - 1) / engine_.block_tokens();
  }
  uint64_t headroom() const;
  bool extend(const SequencePtr& s);
  SequencePtr youngest_after(uint64_t age) const;
  bool preempt(const SequencePtr& s);
  Way way(const Sequence& s) const;
  bool copy_out(const SequencePtr& s);
  void put_out(const SequencePtr& s);
  void give_up_blocks(const SequencePtr& s);
  bool come_back(const SequencePtr& s);
  void copy_in(const SequencePtr& s, size_t first);
  void fetch(const SequencePtr& s, size_t first);
  void compute(const SequencePtr& s, size_t begin);
  void back(const SequencePtr& s, const Result<>& outcome);

  io::Loop& loop_;
  WorkerCore& core_;
  BlockManager& blocks_;
  const Engine& engine_;
  DecodeBatch& batch_;
  const DecodeMemoryOptions options_;
  const uint64_t watermark_;
  const Hooks hooks_;
  StoreConnector* pool_ = nullptr;
  KvRecompute recompute_;
  std::map<uint64_t, SequencePtr> by_age_;  // all that have a reservation
  // Leaving: blocks that are being copied or put.
  uint64_t next_age_ = 1, leaving_ = 0, swapped_bytes_ = 0;
  double copy_bytes_per_s_ = 4e9;
  Time alive_at_{};
  Counter &preemptions_, &to_host_, &to_pool_, &to_compute_;
  Gauge& preempted_;
};

}  // namespace mc::serve
