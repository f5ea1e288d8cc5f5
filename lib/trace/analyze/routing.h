// Compares hit rates of local caches under rules that route requests to nodes.
// Load is not simulated: `requests_max_share` shows how a rule would skew it.
//
//   random      any node
//   longest     the node that holds the longest prefix of the prompt; ties: fewest requests so far
//   nontrivial  the same, but a match of only the blocks that every prompt shares counts as none
//   (the
//               fewest requests so far decide)
//   sticky      by the first block after those that all prompts share: a session stays on its node
//   pool        one cache as large as all of them: what a global cache would hit
//
// The black hole. Where every prompt begins with the same block (a system prompt), `longest` sends
// the second request to the node that served the first, and so on: all others stay empty, and n
// caches hit like one. `nontrivial` is as cheap to compute and hits as much as the pool.
//
// Thread: values; any thread. Pure: no clock; random numbers from the seed.
// Source: Mooncake, section 7.1.3 (local and global caches), Figure 17.
#pragma once
#include <string>
#include <vector>

#include "trace/analyze/stats.h"
#include "trace/records/dense_ids.h"

namespace mc::trace {

inline constexpr uint64_t kRouteNodesMax = 256;
inline const std::vector<std::string> kRoutes = {"random", "longest", "nontrivial", "sticky",
                                                 "pool"};

struct RoutingOptions {
  uint64_t nodes = 10;
  uint64_t node_blocks = kUnlimited;
  uint64_t trivial_blocks = 0;  // shared by every prompt
  uint64_t seed = 0;
  bool each = false;  // fill RoutingHits::each
};

struct RoutingHits {
  std::string route;
  CacheHits hits;                 // capacity: of all nodes together
  uint64_t nodes_used = 0;        // nodes that got a request
  double requests_max_share = 0;  // of the busiest node
  bool black_hole = false;        // one node of several got more than 90 % of all requests
  std::vector<uint64_t> each;     // full blocks found by each request
};

// Errors: kInvalid for 0 or more than kRouteNodesMax nodes.
Result<std::vector<RoutingHits>> routing_study(const Numbered& prompts,
                                               const RoutingOptions& options);

}  // namespace mc::trace
