#include "serve/conductor/conductor_metrics.h"

#include <cmath>

namespace mc::serve {

void Conductor::Instruments::measured(const sched::Measured& m, PoolView& pool) {
  const double s = m.value / 1e3;
  const auto n = static_cast<uint64_t>(std::llround(std::max(m.value, 0.0)));
  switch (m.what) {
    case sched::Measure::kPredictedTtft: return predicted.observe(s);
    case sched::Measure::kTtft: return ttft.observe(s);
    case sched::Measure::kTtftError: return error.observe(s);
    case sched::Measure::kQueueError: return queue_error.observe(s);
    case sched::Measure::kFetchError: return fetch_error.observe(s);
    case sched::Measure::kPoolError: return pool_error.observe(s);
    case sched::Measure::kPrefillError: return prefill_error.observe(s);
    case sched::Measure::kTransferError: return transfer_error.observe(s);
    case sched::Measure::kFirstStepError: return first_step_error.observe(s);
    case sched::Measure::kTbtError: return tbt_error.observe(s);
    case sched::Measure::kInputTokens: return input_tokens.add(n);
    case sched::Measure::kHitTokens: return hit_tokens.add(n);
    case sched::Measure::kReachableTokens: return reachable_tokens.add(n);
    case sched::Measure::kStaleTokens: return stale_tokens.add(n);
    case sched::Measure::kReplicatedTokens: return replicated.add(n);
    case sched::Measure::kPoolMemoryExpected: return pool.expected(n, 0);
    case sched::Measure::kPoolDiskExpected: return pool.expected(0, n);
    case sched::Measure::kPoolTokens: return pool.came(n);
    case sched::Measure::kKvErrors: return kv_errors.add(n);
    case sched::Measure::kWastedPrefill: return wasted.add(n);
  }
}

}  // namespace mc::serve
