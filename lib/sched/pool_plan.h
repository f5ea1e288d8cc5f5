// Says what of a prompt is worth fetching from the KV store's pool, from any block on.
//
// Each block takes the time of the place that has it, and saves the time of computing it. The part
// that saves most ends where going on does not save: before blocks on a slow disk, or of a slow
// node, unless what lies behind them is worth their time. Later tokens take longer to compute, so
// within a piece, whose blocks take equally long to fetch, each saves more than the one before: the
// best part ends with its first block or with a piece.
//
// Thread: a value. Pure. Costs: one pass over the match's pieces; then each question is a search
// among them. `pool` and `cost` outlive it.
#pragma once
#include <cstdint>
#include <vector>

#include "sched/cost.h"
#include "sched/pool/pool_index.h"

namespace mc::sched {

class PoolPlan {
 public:
  // One token of the prompt at least is computed.
  PoolPlan(const PoolMatch& pool, uint64_t tokens, uint64_t block_tokens, const Cost& cost);

  struct Part {
    uint64_t blocks = 0;  // that are fetched; 0: none
    double ms = 0;
  };
  Part best(uint64_t first) const;   // the first blocks are there already
  Part whole(uint64_t first) const;  // all that the pool has next

 private:
  struct Step {             // of a piece of the match
    double before_ms = 0;   // of fetching what the pool has before the piece
    double block_ms = 0;    // of fetching each of its blocks
    uint64_t best_end = 0;  // of the parts from here on that end with a piece the best; 0: a gap
    double best_ms = 0;     // its balance
  };
  // Of fetching what the pool has of the first `end` blocks, which end in piece `at`.
  double before_ms(size_t at, uint64_t end) const;
  // More is better: minus that time, and minus the time of computing the tokens after them.
  double balance(size_t at, uint64_t end) const;
  Part part(uint64_t first, uint64_t end) const;

  const PoolMatch& pool_;
  const Cost& cost_;
  uint64_t tokens_, block_tokens_;
  uint64_t blocks_;  // that may be fetched
  std::vector<Step> steps_;
};

}  // namespace mc::sched
