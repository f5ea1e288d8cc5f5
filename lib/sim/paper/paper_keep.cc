// Which blocks are worth keeping, and in which tier: Figure 19.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/random.h"
#include "sim/cluster/node_cache.h"
#include "sim/paper/paper_figures.h"

namespace mc::sim {

using trace::CacheClass;

namespace {

// The workload of Figure 19 is not public. This one has the conversations, and 8 % questions about
// contexts that last for the whole trace, 16 about each. Requests whose blocks never recur are
// marked ephemeral, up to 62 % of all; there are nearly enough of them.
constexpr double kEphemeral = 0.62, kContext = 0.08;

// The indices of requests whose new blocks occur in no later request.
std::vector<size_t> never_continued(const std::vector<trace::TraceRequest>& records) {
  std::unordered_map<uint64_t, uint64_t> asked;
  for (const trace::TraceRequest& r : records)
    for (const uint64_t id : r.hash_ids) ++asked[id];
  std::unordered_set<uint64_t> seen;
  std::vector<size_t> out;
  for (size_t i = 0; i < records.size(); ++i) {
    bool again = false;
    for (const uint64_t id : records[i].hash_ids)
      again |= seen.insert(id).second && asked.at(id) > 1;
    if (!again) out.push_back(i);
  }
  return out;
}

void mark_ephemeral(trace::Trace& t, uint64_t wanted, Random& random) {
  std::vector<size_t> candidates = never_continued(t.records);
  for (; wanted > 0 && !candidates.empty(); --wanted) {
    std::swap(candidates[random.below(candidates.size())], candidates.back());
    t.records[candidates.back()].cache_class = CacheClass::kEphemeral;
    candidates.pop_back();
  }
}

void add_contexts(trace::Trace& t, uint64_t questions, Random& random) {
  constexpr uint64_t kQuestions = 16, kContextTokens = 32'768, kQuestionTokens = 400;
  const uint64_t last_ms = t.records.back().timestamp_ms;
  const uint64_t shared = kContextTokens / t.block_tokens;
  uint64_t next = 0, first = 0;
  for (const trace::TraceRequest& r : t.records)
    for (const uint64_t id : r.hash_ids) next = std::max(next, id + 1);
  for (uint64_t n = 0; n < questions; ++n) {
    if (n % kQuestions == 0) first = std::exchange(next, next + shared);
    trace::TraceRequest r{random.below(last_ms + 1), kContextTokens + kQuestionTokens, 100, {}};
    r.cache_class = CacheClass::kContext;
    for (uint64_t k = 0; k < shared; ++k) r.hash_ids.push_back(first + k);
    r.hash_ids.push_back(next++);
    t.records.push_back(std::move(r));
  }
}

trace::Trace marked_requests(const PaperInput& in) {
  trace::Trace t;
  t.records = in.conversation.records;
  const auto total = static_cast<double>(t.records.size()) / (1 - kContext);
  Random random(in.seed ^ 0x19);
  mark_ephemeral(t, static_cast<uint64_t>(kEphemeral * total), random);
  add_contexts(t, static_cast<uint64_t>(kContext * total), random);
  std::stable_sort(t.records.begin(), t.records.end(),
                   [](const auto& a, const auto& b) { return a.timestamp_ms < b.timestamp_ms; });
  return t;
}

// Runs the requests in order through one cache. Returns the share of full blocks that hit.
double one_cache_percent(const trace::Trace& t, const char* rule, uint64_t dram_tokens,
                         uint64_t ssd_tokens) {
  NodeCacheOptions o;
  o.dram = dram_tokens / t.block_tokens;
  o.ssd = ssd_tokens / t.block_tokens;
  o.block_tokens = t.block_tokens;
  o.rule = rule;
  for (const trace::TraceRequest& r : t.records)
    o.prompt_max = std::max<uint64_t>(o.prompt_max, r.hash_ids.size());
  NodeCache cache(o, 1);
  uint64_t asked = 0, found = 0;
  for (const trace::TraceRequest& r : t.records) {
    const auto hashes = block_hashes(r, t.block_tokens);
    asked += hashes.size();
    found += cache.look(hashes, r.input_length).blocks();
    cache.end(cache.begin(hashes, r.input_length, Time{}), hashes, r.cache_class);
    cache.changes();  // unused here
  }
  return asked ? 100 * static_cast<double>(found) / static_cast<double>(asked) : 0;
}

// The smallest cache, in steps of 100,000 tokens, whose LRU hits that much; 0: no size does.
uint64_t tokens_for(const trace::Trace& t, double percent) {
  constexpr uint64_t kStep = 100'000;
  uint64_t less = 0, enough = 1000;  // steps
  if (one_cache_percent(t, "lru", enough * kStep, 0) < percent) return 0;
  while (enough - less > 1) {
    const uint64_t middle = (less + enough) / 2;
    (one_cache_percent(t, "lru", middle * kStep, 0) < percent ? less : enough) = middle;
  }
  return enough * kStep;
}

}  // namespace

Result<PaperFigure> figure19(const PaperInput& in) {
  constexpr double kPublishedLru = 27;
  const trace::Trace t = marked_requests(in);
  const uint64_t found = tokens_for(t, kPublishedLru);
  const uint64_t dram = found ? found : 24'000'000;
  const uint64_t ssd = 10 * dram;
  const double lru = one_cache_percent(t, "lru", dram, 0);
  const double filtered = one_cache_percent(t, "filter", dram, 0);
  const double contexts = one_cache_percent(t, "semantic", dram, ssd);
  const double kept = one_cache_percent(t, "tiered", dram, ssd);
  const double unbounded = one_cache_percent(t, "lru", 2'000'000'000, 0);
  PaperFigure f{
      "fig19",
      "What is worth keeping",
      "% of full blocks",
      strf("SYNTHETIC: the conversations, with 62 %% marked ephemeral (among those whose blocks "
           "never recur), and 8 %% questions about contexts of 32 k tokens (16 each, at any time); "
           "one cache of %.1f M tokens, where LRU hits what is published, SSD ten times that",
           static_cast<double>(dram) / 1e6),
      {},
      0.15,
      "The requests behind the published bars and the size of that cache are not public: only the "
      "order and the gain compare, and the gain depends on the share of questions about contexts.",
      {}};
  f.rows = {{"LRU", kPublishedLru, lru},
            {"ephemeral requests left out", {}, filtered},
            {"and contexts kept, on the SSD at worst", {}, contexts},
            {"and all else on the SSD too, contexts never evicted", 52, kept},
            {"a cache without bound", {}, unbounded},
            {"gain over LRU, %", 93, 100 * (kept / lru - 1)}};
  f.claims = {
      {"leaving out what is ephemeral helps, keeping contexts more, and tiers for all the most",
       lru < filtered && filtered < contexts && contexts < kept && kept <= unbounded}};
  return f;
}

}  // namespace mc::sim
