// Plans capacity: the P/D split, cache size and network that keep a workload's SLOs.
// It also returns the curves behind these answers.
//
// It varies one thing at a time: first the split, with all else as given; then, on that split, the
// smallest cache, and with that cache the slowest network, that still reach the target (or come
// nearest to it). Every point is a whole simulation.
//
// Thread: the caller's and others (sim/study/parallel.h); the result is the same for any number of
// threads. Source: Mooncake, figures 16, 21 and 23.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "sim/study/study.h"

namespace mc::sim {

struct PlanOptions {
  StudyOptions study;    // SLOs are in sim.admission
  uint64_t nodes = 16;   // prefill and decode together
  double target = 0.95;  // share of requests within their SLOs
  std::vector<uint64_t> cache_tokens{100'000, 300'000, 1'000'000, 3'000'000, 10'000'000};
  std::vector<double> nic_gbps{25, 50, 100, 200, 400, 800};
};

struct PlanPoint {
  Setting setting;
  double effective = 0;  // share of requests within their SLOs
  std::optional<double> goodput_rps, ttft_p99_s, tbt_p99_ms, hit_ratio;
};

struct PlanCurve {
  std::string of;  // "split", "cache", "network"
  std::vector<PlanPoint> points;
  size_t chosen = 0;
};

struct Planned {
  bool met = false;  // whether the chosen values together reach the target
  uint64_t prefill = 0, decode = 0, cache_tokens = 0;
  double nic_gbps = 0;
  double effective = 0;
  std::vector<PlanCurve> curves;
};

// Errors: kInvalid for fewer than two nodes, no SLO, a target outside (0, 1], empty
// lists.
Result<Planned> plan(const trace::Trace& trace, const cost::ModelSpec& spec,
                     const PlanOptions& options);

std::string plan_text(const Planned& planned, const PlanOptions& options);
Json plan_json(const Planned& planned, const PlanOptions& options);

}  // namespace mc::sim
