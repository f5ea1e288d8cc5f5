// Capacity planning: which split of so many nodes between prefill and decode, how much cache and
// how fast a network a workload needs to keep its promises; and the curves behind the answers.
//
// One thing at a time: first the split with all else as asked for; then, on that split, the
// smallest cache, and with that cache the slowest network, that still reach the target (or, where
// nothing does, what comes nearest). Every point is a whole simulation.
//
// Thread: the caller's and others beside it (sim/study/parallel.h); the outcome is the same
// whatever their number. Source: Mooncake, figures 16, 21 and 23.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "sim/study/study.h"

namespace mc::sim {

struct PlanOptions {
  StudyOptions study;    // promises are in sim.admission
  uint64_t nodes = 16;   // prefill and decode together
  double target = 0.95;  // of requests that keep their promises
  std::vector<uint64_t> cache_tokens{100'000, 300'000, 1'000'000, 3'000'000, 10'000'000};
  std::vector<double> nic_gbps{25, 50, 100, 200, 400, 800};
};

struct PlanPoint {
  Setting setting;
  double effective = 0;  // share of requests that keep their promises
  std::optional<double> goodput_rps, ttft_p99_s, tbt_p99_ms, hit_ratio;
};

struct PlanCurve {
  std::string of;  // "split", "cache", "network"
  std::vector<PlanPoint> points;
  size_t chosen = 0;
};

struct Planned {
  bool met = false;  // the target, by all that was chosen together
  uint64_t prefill = 0, decode = 0, cache_tokens = 0;
  double nic_gbps = 0;
  double effective = 0;
  std::vector<PlanCurve> curves;
};

// Errors: kInvalid for fewer than two nodes, no promise at all, a target outside (0, 1], empty
// lists.
Result<Planned> plan(const trace::Trace& trace, const cost::ModelSpec& spec,
                     const PlanOptions& options);

std::string plan_text(const Planned& planned, const PlanOptions& options);
Json plan_json(const Planned& planned, const PlanOptions& options);

}  // namespace mc::sim
