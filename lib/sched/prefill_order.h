// Orders the queue of a prefill node.
//
// `fcfs` takes the prompt that came first. `srpf` takes the one with the least left to compute,
// less its wait times `ageing`. So a short prompt does not wait behind a long one, and a long one
// is not starved: with ageing 0.1, ten seconds of waiting make up for one second of computing. A
// lower priority number goes before either order.
//
// Thread: values. Pure.
// Source: shortest remaining processing time (Schrage, 1968), with ageing.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"

namespace mc::sched {

inline const std::vector<std::string> kPrefillOrders = {"fcfs", "srpf"};

struct PrefillOrder {
  bool srpf = false;  // else first come, first served
  double ageing = 0.1;
  uint64_t chunk_tokens = 0;  // the node chooses anew after so many; 0: a prompt runs to its end
};

struct PrefillWork {
  double left_ms = 0;  // to compute, without what caches give
  Time since{};        // it waits
  bool ready = true;   // its fetched prefix is there
  int64_t priority = 0;
};

// Whether `a`, which came first, keeps its place before `b`: at any time, for both age alike.
inline bool stays_before(const PrefillWork& a, const PrefillWork& b, const PrefillOrder& order) {
  if (a.priority != b.priority) return a.priority < b.priority;
  if (!order.srpf) return true;
  return a.left_ms + order.ageing * to_ms(a.since - b.since) <= b.left_ms;
}

// The place of the next of `work` (in order of arrival); work.size() when none is ready.
inline size_t next_prefill(std::span<const PrefillWork> work, bool srpf, double ageing, Time now) {
  size_t best = work.size();
  double best_key = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    if (!work[i].ready) continue;
    const double key = work[i].left_ms - ageing * to_ms(now - work[i].since);
    const bool found = best != work.size();
    const int64_t than = found ? work[best].priority : work[i].priority;
    if (found &&
        (work[i].priority > than || (work[i].priority == than && (!srpf || key >= best_key))))
      continue;
    best = i;
    best_key = key;
  }
  return best;
}

}  // namespace mc::sched
