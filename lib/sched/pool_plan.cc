#include "sched/pool_plan.h"

#include <algorithm>
#include <array>

namespace mc::sched {
namespace {

// Remembers the times of the places seen last: the blocks of a prompt lie on a few nodes, in any
// order.
class PlaceTimes {
 public:
  PlaceTimes(const Cost& cost, uint64_t block_tokens)
      : cost_(cost), tokens_(static_cast<double>(block_tokens)) {}
  double block_ms(const PoolPlace& place) {
    if (place.tier == PoolTier::kNone) return 0;
    Known& known = known_[(place.node * 2u + static_cast<size_t>(place.tier)) % known_.size()];
    if (known.place != place) known = {place, tokens_ * cost_.pool_token_ms(place)};
    return known.ms;
  }

 private:
  struct Known {
    PoolPlace place{};
    double ms = 0;
  };
  const Cost& cost_;
  double tokens_;
  std::array<Known, 64> known_{};
};

}  // namespace

PoolPlan::PoolPlan(const PoolMatch& pool, uint64_t tokens, uint64_t block_tokens, const Cost& cost)
    : pool_(pool),
      cost_(cost),
      tokens_(tokens),
      block_tokens_(block_tokens),
      blocks_(tokens == 0 ? 0 : std::min<uint64_t>(pool.size(), (tokens - 1) / block_tokens)) {
  if (blocks_ == 0) return;
  const auto& pieces = pool.pieces();
  const size_t n = pool.piece_of(blocks_ - 1) + 1;
  steps_.reserve(n);
  PlaceTimes times(cost, block_tokens);
  double before = 0;
  for (size_t i = 0; i < n; ++i) {
    steps_.push_back({.before_ms = before, .block_ms = times.block_ms(pieces[i].place)});
    before += steps_[i].block_ms * static_cast<double>(pieces[i].end - pieces[i].first);
  }
  for (size_t i = n; i-- > 0;) {
    Step& step = steps_[i];
    if (pieces[i].place.tier == PoolTier::kNone) continue;
    step.best_end = std::min<uint64_t>(pieces[i].end, blocks_);
    step.best_ms = balance(i, step.best_end);
    if (i + 1 == n) continue;
    const Step& next = steps_[i + 1];
    if (next.best_end == 0 || next.best_ms <= step.best_ms) continue;
    step.best_end = next.best_end;
    step.best_ms = next.best_ms;
  }
}

double PoolPlan::before_ms(size_t at, uint64_t end) const {
  const Step& step = steps_[at];
  return step.before_ms + step.block_ms * static_cast<double>(end - pool_.pieces()[at].first);
}

double PoolPlan::balance(size_t at, uint64_t end) const {
  return -before_ms(at, end) - cost_.prefill_ms(tokens_, end * block_tokens_);
}

PoolPlan::Part PoolPlan::part(uint64_t first, uint64_t end) const {
  if (end <= first) return {};
  return {end - first, Cost::kPoolRoundTripMs + before_ms(pool_.piece_of(end - 1), end) -
                           before_ms(pool_.piece_of(first), first)};
}

PoolPlan::Part PoolPlan::best(uint64_t first) const {
  if (first >= blocks_) return {};
  const size_t at = pool_.piece_of(first);
  const Step& step = steps_[at];
  if (step.best_end == 0) return {};
  const double one_ms = balance(at, first + 1);
  const bool one = one_ms >= step.best_ms;
  if ((one ? one_ms : step.best_ms) - balance(at, first) <= Cost::kPoolRoundTripMs) return {};
  return part(first, one ? first + 1 : step.best_end);
}

PoolPlan::Part PoolPlan::whole(uint64_t first) const {
  return part(first, first + pool_.run(first, blocks_).blocks());
}

}  // namespace mc::sched
