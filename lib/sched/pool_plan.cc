#include "sched/pool_plan.h"

#include <algorithm>

namespace mc::sched {

PoolPlan::PoolPlan(const PoolMatch& pool, uint64_t tokens, uint64_t block_tokens, const Cost& cost)
    : pool_(pool),
      blocks_(tokens == 0 ? 0 : std::min<uint64_t>(pool.size(), (tokens - 1) / block_tokens)) {
  if (blocks_ == 0) return;
  before_ms_.resize(blocks_ + 1);
  PoolPlace known;
  double block_ms = 0;
  for (uint64_t i = 0; i < blocks_; ++i) {
    if (has(i) && (block_ms == 0 || known != pool.place(i))) {
      known = pool.place(i);
      block_ms = static_cast<double>(block_tokens) * cost.pool_token_ms(known);
    }
    before_ms_[i + 1] = before_ms_[i] + (has(i) ? block_ms : 0);
  }
  gain_ms_.resize(blocks_);
  best_ends_.resize(blocks_);
  double behind_ms =
      cost.prefill_ms(tokens, blocks_ * block_tokens);  // to compute the blocks after
  for (uint64_t i = blocks_; i-- > 0;) {
    const double here_ms = cost.prefill_ms(tokens, i * block_tokens);
    const bool goes_on = has(i + 1) && gain_ms_[i + 1] > 0;
    gain_ms_[i] = here_ms - behind_ms - (before_ms_[i + 1] - before_ms_[i]);
    if (goes_on) gain_ms_[i] += gain_ms_[i + 1];
    best_ends_[i] = goes_on ? best_ends_[i + 1] : i + 1;
    behind_ms = here_ms;
  }
}

PoolPlan::Part PoolPlan::part(uint64_t first, uint64_t end) const {
  if (end <= first) return {};
  return {end - first, Cost::kPoolRoundTripMs + before_ms_[end] - before_ms_[first]};
}

PoolPlan::Part PoolPlan::best(uint64_t first) const {
  if (!has(first) || gain_ms_[first] <= Cost::kPoolRoundTripMs) return {};
  return part(first, best_ends_[first]);
}

PoolPlan::Part PoolPlan::whole(uint64_t first) const {
  return part(first, first + pool_.run(first, blocks_).blocks());
}

}  // namespace mc::sched
