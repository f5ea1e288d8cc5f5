#include "trace/analyze/stats.h"

#include <algorithm>
#include <unordered_map>

namespace mc::trace {
namespace {

using ull = unsigned long long;

double rate(uint64_t part, uint64_t whole) {
  return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// For each request, the stack depths of its leading blocks: a cache of C blocks holds the first k
// of them exactly when the deepest of those k is at most C. Calls leading(k, deepest) for each
// prefix that was seen before, then touches every block, last first.
template <class F>
void match_and_touch(LruStack& stack, std::span<const uint32_t> ids, F leading) {
  uint64_t deepest = 0;
  for (size_t k = 0; k < ids.size(); ++k) {
    deepest = std::max(deepest, stack.depth(ids[k]));
    if (deepest == kUnlimited) break;
    leading(k, deepest);
  }
  for (size_t k = ids.size(); k-- > 0;) stack.touch(ids[k]);
}

// Hits by stack depth. A prefix sum gives the hits of a cache of that many blocks.
class ByDepth {
 public:
  explicit ByDepth(uint64_t depth_max) : sums_(depth_max + 1) {}
  void add(uint64_t depth, uint64_t amount) { sums_[depth] += amount; }
  void accumulate() {
    for (size_t d = 1; d < sums_.size(); ++d) sums_[d] += sums_[d - 1];
  }
  uint64_t up_to(uint64_t capacity) const {
    return sums_[std::min<uint64_t>(capacity, sums_.size() - 1)];
  }

 private:
  std::vector<uint64_t> sums_;
};

}  // namespace

LruStack::LruStack(uint64_t touches_max, uint64_t distinct)
    : last_(distinct), tree_(touches_max + 1) {}

void LruStack::add(uint64_t time, int64_t n) {
  for (; time < tree_.size(); time += time & -time) tree_[time] += n;
}

uint64_t LruStack::younger(uint64_t time) const {
  int64_t older_or_equal = 0;
  for (; time; time -= time & -time) older_or_equal += tree_[time];
  return size_ - static_cast<uint64_t>(older_or_equal);
}

uint64_t LruStack::depth(uint64_t id) const {
  return last_[id] == 0 ? kUnlimited : younger(last_[id]) + 1;
}

void LruStack::touch(uint64_t id) {
  uint64_t& last = last_[id];
  if (last)
    add(last, -1);
  else
    ++size_;
  last = ++now_;
  MC_CHECK(now_ < tree_.size());  // more touches than were announced
  add(now_, 1);
}

double HitCurve::block_rate(const CacheHits& h) const { return rate(h.hit_blocks, blocks); }
double HitCurve::token_rate(const CacheHits& h) const { return rate(h.hit_tokens, tokens); }
double HitCurve::full_block_rate(const CacheHits& h) const {
  return rate(h.hit_full_blocks, full_blocks);
}

HitCurve lru_curve(const std::vector<TraceRequest>& records, uint64_t block_tokens,
                   const std::vector<uint64_t>& capacities_blocks) {
  return lru_curve(number_blocks(records, block_tokens), capacities_blocks);
}

HitCurve lru_curve(const Numbered& p, const std::vector<uint64_t>& capacities_blocks) {
  const uint64_t touches = p.ids.size();
  HitCurve curve;
  curve.blocks = touches;
  curve.tokens = p.tokens;
  curve.full_blocks = p.full_blocks;
  ByDepth blocks_hit(touches), tokens_hit(touches), full_hit(touches);
  LruStack all(touches, p.distinct), full_only(touches, p.distinct);
  for (size_t i = 0; i < p.size(); ++i) {
    match_and_touch(all, p.all(i), [&](size_t k, uint64_t depth) {
      blocks_hit.add(depth, 1);
      tokens_hit.add(depth, p.tokens_in(i, k + 1) - p.tokens_in(i, k));
    });
    match_and_touch(full_only, p.full(i), [&](size_t, uint64_t depth) { full_hit.add(depth, 1); });
  }
  blocks_hit.accumulate();
  tokens_hit.accumulate();
  full_hit.accumulate();
  const auto at = [&](uint64_t capacity) {
    return CacheHits{capacity, blocks_hit.up_to(capacity), tokens_hit.up_to(capacity),
                     full_hit.up_to(capacity)};
  };
  curve.infinite = at(kUnlimited);
  for (const uint64_t capacity : capacities_blocks) curve.points.push_back(at(capacity));
  return curve;
}

Result<Prediction> predict_hits(const std::vector<TraceRequest>& records, uint64_t block_tokens,
                                const PredictOptions& options) {
  const uint64_t block = options.cluster_block_tokens ? options.cluster_block_tokens : block_tokens;
  if (block_tokens % block != 0)
    return fail(Code::kInvalid,
                "the cluster's block of %llu tokens does not divide the trace's %llu: the trace "
                "cannot predict its hits",
                static_cast<ull>(block), static_cast<ull>(block_tokens));
  if (options.nodes == 0)
    return fail(Code::kInvalid, "a cluster of 0 nodes caches nothing: want at least 1");
  const uint64_t parts = block_tokens / block;

  Prediction p;
  p.block_tokens = block;
  p.capacity_blocks = options.node_blocks > kUnlimited / options.nodes
                          ? kUnlimited
                          : options.node_blocks * options.nodes;
  p.requests = records.size();
  const Numbered prompts = number_blocks(records, block_tokens);
  if (prompts.ids.size() > UINT32_MAX / parts)
    return fail(Code::kNoSpace, "%zu blocks in %llu parts each are too many; use --limit",
                prompts.ids.size(), static_cast<ull>(parts));
  LruStack stack(prompts.ids.size() * parts, prompts.distinct * parts);
  std::vector<uint32_t> ids;  // a cluster block is (trace block, part)
  for (size_t i = 0; i < prompts.size(); ++i) {
    const TraceRequest& r = records[i];
    const uint64_t full = full_blocks(r.input_length, block);
    ids.clear();
    for (uint64_t k = 0; k < full; ++k)
      ids.push_back(static_cast<uint32_t>(prompts.all(i)[k / parts] * parts + k % parts));
    uint64_t present = 0;
    match_and_touch(stack, ids, [&](size_t k, uint64_t depth) {
      if (depth <= p.capacity_blocks) present = k + 1;
    });
    const uint64_t hit = std::min(present, (r.input_length - 1) / block);
    p.input_tokens += r.input_length;
    p.full_blocks += full;
    p.hit_blocks += hit;
    p.requests_with_hits += hit > 0;
    p.cached.push_back(hit * block);
  }
  p.hit_tokens = p.hit_blocks * block;
  return p;
}

namespace {

void describe_times(const Trace& trace, TraceStats& s) {
  uint64_t at_this = 0;
  for (size_t i = 0; i < trace.records.size(); ++i) {
    const bool same = i && trace.records[i].timestamp_ms == trace.records[i - 1].timestamp_ms;
    s.stamps += !same;
    at_this = same ? at_this + 1 : 1;
    s.per_stamp_max = std::max(s.per_stamp_max, at_this);
  }
  if (!trace.records.empty())
    s.span_s = static_cast<double>(trace.records.back().timestamp_ms -
                                   trace.records.front().timestamp_ms) /
               1000;
}

void describe_lengths(const Trace& trace, TraceStats& s) {
  std::vector<double> input, output;
  for (const TraceRequest& r : trace.records) {
    input.push_back(static_cast<double>(r.input_length));
    output.push_back(static_cast<double>(r.output_length));
    s.input_tokens += r.input_length;
    s.output_tokens += r.output_length;
  }
  s.input = Distribution(std::move(input));
  s.output = Distribution(std::move(output));
}

uint64_t common_prefix(const std::vector<TraceRequest>& records) {
  if (records.empty()) return 0;
  const std::vector<uint64_t>& first = records[0].hash_ids;
  size_t n = first.size();
  for (const TraceRequest& r : records) {
    n = std::min(n, r.hash_ids.size());
    n = static_cast<size_t>(std::mismatch(first.begin(),
                                          first.begin() + static_cast<std::ptrdiff_t>(n),
                                          r.hash_ids.begin())
                                .first -
                            first.begin());
  }
  return n;
}

void describe_blocks(const Trace& trace, TraceStats& s) {
  struct Seen {
    uint64_t times = 0;
    uint64_t parent = kUnlimited;  // no block: first in its prompt
    bool many_parents = false;
  };
  std::unordered_map<uint64_t, Seen> seen;
  s.ids_dense = true;
  s.shared_by_all = common_prefix(trace.records);
  for (const TraceRequest& r : trace.records) {
    uint64_t parent = kUnlimited;
    const uint64_t beyond = s.shared_by_all;  // is the first block after the common ones new?
    s.roots += r.hash_ids.size() <= beyond ? 0 : !seen.contains(r.hash_ids[beyond]);
    for (const uint64_t id : r.hash_ids) {
      const auto [at, fresh] = seen.try_emplace(id);
      if (fresh) s.ids_dense = s.ids_dense && id == seen.size() - 1;
      if (fresh)
        at->second.parent = parent;
      else if (at->second.parent != parent)
        at->second.many_parents = true;
      ++at->second.times;
      parent = id;
    }
    s.blocks += r.hash_ids.size();
  }
  s.distinct_blocks = seen.size();
  for (const auto& [id, block] : seen) {
    s.blocks_seen_once += block.times == 1;
    s.ids_many_parents += block.many_parents;
  }
}

}  // namespace

TraceStats describe(const Trace& trace) {
  TraceStats s;
  s.requests = trace.records.size();
  describe_times(trace, s);
  describe_lengths(trace, s);
  describe_blocks(trace, s);
  return s;
}

}  // namespace mc::trace
