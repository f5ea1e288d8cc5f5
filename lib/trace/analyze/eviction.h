// Counts a cache's hits under eviction orders other than LRU.
// The terms are those of stats.h: requests in order, blocks touched or inserted from last to first.
// A request never evicts its own blocks. A prompt of more blocks than the cache uses its first C.
//
//   lfu      evicts the block with the fewest uses since insertion; ties: least recently used
//   fifo     evicts the oldest insertion
//   sieve    base/sieve.h
//   s3-fifo  a tenth of the room is a probationary queue. A block used more than once there moves
//   to
//            the main queue; the others are remembered (as many as the main queue holds) and enter
//            the main queue directly if they return. `s3-fifo-0`: one use is enough
//   opt      knows the future: keeps the C blocks with the nearest next use, and does not admit a
//            block whose next use is later. A block is never used before its prefix, so this is
//            optimal for prefixes too: an upper bound of every order at every size
//
// Thread: values; any thread. Pure: no clock, no I/O.
// Source: Zhang et al., "SIEVE is simpler than LRU" (2024); Yang et al., "FIFO queues are all you
// need for cache eviction" (2023); Belady, "A study of replacement algorithms" (1966).
#pragma once
#include <string>
#include <vector>

#include "trace/analyze/stats.h"
#include "trace/records/dense_ids.h"

namespace mc::trace {

inline const std::vector<std::string> kEvictionOrders = {"lfu",     "fifo",      "sieve",
                                                         "s3-fifo", "s3-fifo-0", "opt"};

struct EvictionCurve {
  std::string order;
  std::vector<CacheHits> points;  // one for each requested capacity
};

// Errors: kInvalid for an order that is not in kEvictionOrders.
Result<EvictionCurve> eviction_curve(const Numbered& prompts, const std::string& order,
                                     const std::vector<uint64_t>& capacities_blocks);

}  // namespace mc::trace
