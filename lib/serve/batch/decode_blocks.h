// Decides which sequences of a decode worker have KV blocks. A sequence takes blocks as it grows.
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
// on. One that is alone in the batch and has no block for its next token leaves its place to older
// ones that wait for a place. A request that the whole pool could not hold is refused when it
// comes. Blocks into which a prefill side may still write are fenced before others get them.
//
// The KV itself is moved by a KvMover: a live worker's (serve/worker/decode_memory.h), or a
// simulated one's (sim/cluster/decoder.h).
//
// Thread: one owner. Pure: no clock, no I/O.
// Source: vLLM (SOSP 2023) section 4.5, swapping and recomputation.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "serve/batch/batcher.h"
#include "serve/batch/decode_kv.h"
#include "serve/kvcache/block_manager.h"

namespace mc::serve {

inline const std::vector<std::string> kPreemptModes = {"auto", "swap", "recompute", "off"};

struct DecodeBlocksOptions {
  std::string preempt = "auto";  // off: a reservation takes the blocks of prompt and answer
  double watermark = 0.01;       // share of the blocks that a reservation leaves free
  uint64_t swap_bytes = 0;       // host memory for the KV of preempted sequences
  uint64_t block_bytes = 1;
  bool grow() const { return preempt != "off"; }
};

enum class KvWay : uint8_t { kHost, kPool, kRecompute };  // of a preempted sequence's KV

// Moves KV. Whatever takes time is reported to DecodeBlocks when it is done.
class KvMover {
 public:
  virtual ~KvMover() = default;
  virtual std::byte* memory(BlockId block) = 0;
  virtual bool shed() { return false; }      // the pool's queue lets go of blocks
  virtual void fence(const DecodeKvPtr&) {}  // its blocks, against the prefill side
  virtual double compute_seconds(size_t begin, size_t end) const = 0;
  virtual bool has_pool() const { return false; }
  virtual double fetch_seconds(uint64_t) const { return 0; }  // from the pool, of so many bytes
  virtual void preempted(const DecodeKvPtr&, KvWay) {}        // after it was decided
  // Begins to copy its written blocks to host memory: then copied_out(). False: not now.
  virtual bool copy_out(const DecodeKvPtr& s) = 0;
  virtual void put_out(const DecodeKvPtr&) {}  // full blocks to the pool: then put_done() for each
  // Begins to bring its KV back, behind `first` blocks that are here: then returned().
  virtual void copy_in(const DecodeKvPtr& s, size_t first) = 0;
  virtual void fetch(const DecodeKvPtr&, size_t) {}
  virtual void compute(const DecodeKvPtr& s, size_t begin) = 0;  // from token `begin` on
};

class DecodeBlocks {
 public:
  // All references outlive this.
  DecodeBlocks(BlockManager& blocks, DecodeBatch& batch, KvMover& mover,
               const DecodeBlocksOptions& options);

  // Blocks for a prompt. Gives `s` its age. Errors: kInvalid: the pool is too small for prompt and
  // answer; kNoSpace: not now.
  Result<> reserve(const DecodeKvPtr& s, Time now);
  // Gives the sequences that run their blocks for the next token, the oldest first. May preempt
  // others. Those without one are `stalled`, or not kHere any more.
  void grow(std::vector<DecodeKvPtr> running);
  // One more block, if it is free beside the headroom.
  bool extend_beyond(DecodeKv& s);
  // Begins to bring back preempted sequences that fit now. Call it between steps.
  void bring_back(Time now);
  void release(const DecodeKvPtr& s);  // it ended: its blocks are free

  // What the mover says.
  void copied_out(const DecodeKvPtr& s, double seconds);  // its blocks are free, if it goes on
  bool put_done() { return --leaving_ == 0; }             // true: it was the last
  void left_host(DecodeKv& s);                            // its copy is not needed any more
  void returned(const DecodeKvPtr& s);                    // its KV is back: it may join the batch

  // The id of a block of a sequence that has its blocks.
  BlockId id(const DecodeKv& s, size_t block) const;
  uint64_t growth() const { return options_.grow() ? 1 + headroom() : 0; }  // as in WorkerLoad
  uint64_t blocks_of(uint64_t tokens) const {
    return (tokens + blocks_.block_tokens() - 1) / blocks_.block_tokens();
  }
  uint64_t available() const;  // free or cached
  const std::map<uint64_t, DecodeKvPtr>& by_age() const { return by_age_; }

 private:
  uint64_t headroom() const;
  bool extend(const DecodeKvPtr& s);
  DecodeKvPtr youngest_after(uint64_t age) const;
  bool older_waits(uint64_t age) const;
  void preempt(const DecodeKvPtr& s);
  KvWay way(const DecodeKv& s) const;
  void give_up_blocks(DecodeKv& s);
  bool come_back(const DecodeKvPtr& s, Time now);

  BlockManager& blocks_;
  DecodeBatch& batch_;
  KvMover& mover_;
  const DecodeBlocksOptions options_;
  const uint64_t watermark_;
  std::map<uint64_t, DecodeKvPtr> by_age_;  // all that have a reservation
  // Leaving: blocks that are being copied or put.
  uint64_t next_age_ = 1, leaving_ = 0, swapped_bytes_ = 0;
  double copy_bytes_per_s_ = 4e9;
};

}  // namespace mc::serve
