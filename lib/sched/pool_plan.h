// Says what of a prompt is worth fetching from the KV store's pool, from any block on.
//
// Each block takes the time of the place that has it, and saves the time of computing it. The part
// that saves most ends where going on does not save: before blocks on a slow disk, or of a slow
// node, unless what lies behind them is worth their time.
//
// Thread: a value. Pure. Costs: one pass over the blocks; then each question is a look-up.
#pragma once
#include <cstdint>
#include <vector>

#include "sched/cost.h"
#include "sched/pool/pool_index.h"

namespace mc::sched {

class PoolPlan {
 public:
  // `pool` outlives it. One token of the prompt at least is computed.
  PoolPlan(const PoolMatch& pool, uint64_t tokens, uint64_t block_tokens, const Cost& cost);

  struct Part {
    uint64_t blocks = 0;  // that are fetched; 0: none
    double ms = 0;
  };
  Part best(uint64_t first) const;   // the first blocks are there already
  Part whole(uint64_t first) const;  // all that the pool has next

 private:
  Part part(uint64_t first, uint64_t end) const;
  bool has(uint64_t block) const {
    return block < blocks_ && pool_.place(block).tier != PoolTier::kNone;
  }

  const PoolMatch& pool_;
  uint64_t blocks_;                  // that may be fetched
  std::vector<double> before_ms_;    // of fetching the blocks before i that the pool has
  std::vector<double> gain_ms_;      // of the best part that begins with block i, no round trip
  std::vector<uint64_t> best_ends_;  // of that part
};

}  // namespace mc::sched
