// Defines the load of a node; 1 is full.
//
// The controller of prefill and decode nodes and the displays use the same numbers, live and
// simulated. A prefill node: 1 if it computes, plus the wait of a new request as a share of the
// promised TTFT, 1 at most. A decode node: the time of a step as a share of the promised time
// between tokens, 2 at most. Without a promise the shares are of 30 s and 100 ms.
//
// Thread: values. Pure. Source: Mooncake paper, sections 4.3 and 5.1.
#pragma once
#include <algorithm>

#include "base/time.h"

namespace mc::sched {

inline double prefill_load(double wait_ms, bool computing, Duration ttft_slo) {
  const double promise = ttft_slo.count() > 0 ? to_ms(ttft_slo) : 30'000;
  return std::min(wait_ms / promise, 1.0) + (computing ? 1 : 0);
}

inline double decode_load(double step_ms, Duration tbt_slo) {
  const double promise = tbt_slo.count() > 0 ? to_ms(tbt_slo) : 100;
  return std::min(step_ms / promise, 2.0);
}

}  // namespace mc::sched
