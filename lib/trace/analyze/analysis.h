// Builds the report of `mc-replay analyze`, as text and JSON.
// It has the trace's statistics, its hit rates, and the hits to expect of a cluster.
//
// Thread: values; any thread. Pure: no clock, no I/O.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "trace/analyze/eviction.h"
#include "trace/analyze/routing.h"
#include "trace/analyze/stats.h"

namespace mc::trace {

struct AnalysisOptions {
  std::vector<uint64_t> capacities_tokens;  // of the curves
  std::vector<std::string> orders;          // of kEvictionOrders, in addition to LRU
  uint64_t route_nodes = 0;                 // local caches for the routing rules; 0: none
  uint64_t route_tokens = 0;                // that each local cache holds
  uint64_t seed = 0;                        // of the random rule
  std::optional<PredictOptions> predict;    // absent: no cluster is predicted
};

struct Analysis {
  TraceStats stats;
  std::vector<uint64_t> capacities_tokens;
  HitCurve curve;                     // LRU; a point for each capacity
  std::vector<EvictionCurve> orders;  // the others
  uint64_t route_nodes = 0, route_tokens = 0;
  std::vector<RoutingHits> routes;
  std::optional<PredictOptions> asked;
  std::optional<Prediction> prediction;
};

// "300000", "0.3M", "10M", "1G": tokens. The default list is that of the published curve.
Result<uint64_t> parse_tokens(std::string_view text);
std::string tokens_text(uint64_t tokens);  // "0.3M"
inline const std::vector<std::string> kCapacities = {"0.1M", "0.3M", "1M",  "3M",
                                                     "10M",  "30M",  "50M", "100M"};

Result<Analysis> analyze(const Trace& trace, const AnalysisOptions& options);
std::string analysis_text(const Trace& trace, const Analysis& analysis);
Json analysis_json(const Trace& trace, const Analysis& analysis);

}  // namespace mc::trace
