// What one cache of a given size hits under other eviction orders than LRU, with the words of
// stats.h: requests in order, blocks touched or inserted from last to first, blocks of the request
// at hand never evicted by it. A prompt of more blocks than the cache uses its first C.
//
//   lfu      fewest uses since insertion goes first; ties: least recently used
//   fifo     oldest insertion first
//   sieve    base/sieve.h
//   s3-fifo  a tenth of the room is a probationary queue; what was used more than once there moves
//            to the main queue, the rest is remembered (as many as the main queue holds) and goes
//            straight to the main queue if it comes back. `s3-fifo-0`: used at all is enough
//   opt      knows the future: keeps the C blocks with the nearest next use, and does not admit
//            what is further off. A block is never used before its prefix, so this is optimal
//            for prefixes too: an upper bound of every order at every size
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
  std::vector<CacheHits> points;  // one for each capacity asked for
};

// Errors: kInvalid for an order that is not in kEvictionOrders.
Result<EvictionCurve> eviction_curve(const Numbered& prompts, const std::string& order,
                                     const std::vector<uint64_t>& capacities_blocks);

}  // namespace mc::trace
