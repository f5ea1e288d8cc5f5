// Describes a trace and computes the hit rates of caches of any size.
//
// Terms. A request has m = len(hash_ids) blocks; all but the last are full, the last may be
// partial. h is the number of its leading blocks that are cached when it arrives.
//   block rate       sum h / sum m: a partial block counts as one
//   token rate       sum min(block * h, input) / sum input: a partial block counts its own tokens
//   full-block rate  the block rate of a cache that holds no partial blocks, as of engines that
//                    share only full blocks
// Output tokens never enter a cache. After matching, a request's blocks are touched (or inserted)
// from last to first, so that leaves are evicted before their prefixes; the blocks of the request
// itself are pinned. For LRU that equals keeping the first C blocks in the order (last request,
// newest first; then position), so one pass of stack distances gives the hits of every capacity.
//
// Thread: values; any thread. Pure: no clock, no I/O.
// Source: Mattson et al., "Evaluation techniques for storage hierarchies" (1970).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trace/records/dense_ids.h"
#include "trace/records/distribution.h"
#include "trace/records/records.h"

namespace mc::trace {

inline constexpr uint64_t kUnlimited = UINT64_MAX;  // blocks

// The LRU stack: a block's depth, counted from 1 at the most recently used. Ids are below
// `distinct`.
class LruStack {
 public:
  LruStack(uint64_t touches_max, uint64_t distinct);
  uint64_t depth(uint64_t id) const;  // kUnlimited when never touched
  void touch(uint64_t id);            // moves it to depth 1
  uint64_t size() const { return size_; }

 private:
  uint64_t younger(uint64_t time) const;  // blocks last touched after `time`
  void add(uint64_t time, int64_t n);
  std::vector<uint64_t> last_;  // by id: time of its last touch, from 1; 0: never
  std::vector<int64_t> tree_;   // Fenwick: one for each time that is a last touch
  uint64_t now_ = 0, size_ = 0;
};

struct CacheHits {
  uint64_t capacity_blocks = kUnlimited;
  uint64_t hit_blocks = 0, hit_tokens = 0, hit_full_blocks = 0;
};

struct HitCurve {
  uint64_t blocks = 0, tokens = 0, full_blocks = 0;  // denominators of the rates
  CacheHits infinite;
  std::vector<CacheHits> points;  // one for each requested capacity, in that order

  double block_rate(const CacheHits& h) const;
  double token_rate(const CacheHits& h) const;
  double full_block_rate(const CacheHits& h) const;
};

HitCurve lru_curve(const Numbered& prompts, const std::vector<uint64_t>& capacities_blocks);
HitCurve lru_curve(const std::vector<TraceRequest>& records, uint64_t block_tokens,
                   const std::vector<uint64_t>& capacities_blocks);

// Predicts what a live cluster reports as cached tokens. Requests are served one at a time in the
// order of the trace, by one LRU pool of `nodes` times `node_blocks` blocks:
//  - only full blocks are cached and shared; a partial last block is always computed;
//  - a request's hit is its leading full blocks that are present, but never its whole prompt: at
//    least one token must be computed to have logits for the first answer token, and only whole
//    blocks are skipped, so a prompt of exactly k blocks that are all present counts k - 1;
//  - all its full blocks are then touched, last to first.
// A live run differs where requests overlap in time: a prompt finds less if another node is still
// computing its prefix.
struct PredictOptions {
  uint64_t node_blocks = kUnlimited;
  uint64_t nodes = 1;
  // Tokens in a block of the *cluster*. Must divide the trace's block: smaller ones match also in
  // the last block of an identical prompt. 0: the trace's.
  uint64_t cluster_block_tokens = 0;
};

struct Prediction {
  uint64_t capacity_blocks = 0;  // of the pool; kUnlimited
  uint64_t block_tokens = 0;     // of the cluster
  uint64_t requests = 0, requests_with_hits = 0;
  uint64_t input_tokens = 0, full_blocks = 0;
  uint64_t hit_blocks = 0, hit_tokens = 0;
  std::vector<uint64_t> cached;  // tokens, for each record
};

// Errors: kInvalid when the cluster's block does not divide the trace's, or `nodes` is 0.
Result<Prediction> predict_hits(const std::vector<TraceRequest>& records, uint64_t block_tokens,
                                const PredictOptions& options);

struct TraceStats {
  uint64_t requests = 0;
  double span_s = 0;
  uint64_t stamps = 0, per_stamp_max = 0;  // distinct times; most requests at one of them
  Distribution input, output;              // tokens
  uint64_t input_tokens = 0, output_tokens = 0;
  uint64_t blocks = 0, distinct_blocks = 0, blocks_seen_once = 0;
  uint64_t shared_by_all = 0;     // leading blocks that every request has
  uint64_t roots = 0;             // requests that find no earlier block beyond those
  uint64_t ids_many_parents = 0;  // ids that follow more than one id: 0 in a prefix tree
  bool ids_dense = false;         // numbered from 0 in order of first use
};

TraceStats describe(const Trace& trace);

}  // namespace mc::trace
