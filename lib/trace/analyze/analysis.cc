#include "trace/analyze/analysis.h"

#include <cmath>

#include "base/json.h"
#include "base/units.h"

namespace mc::trace {
namespace {

using ull = unsigned long long;

std::string lengths(const char* label, const Distribution& d) {
  return strf("%-10s sum %.0f  mean %.2f  p50 %.1f  p90 %.1f  p99 %.1f  min %.0f  max %.0f\n",
              label, d.sum(), d.mean(), d.percentile(50), d.percentile(90), d.percentile(99),
              d.min(), d.max());
}

double share(uint64_t part, uint64_t whole) {
  return whole ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string reading(const Trace& t) {
  std::string out = strf("trace      %s: %llu lines, %llu malformed, %llu out of order\n",
                         t.name.c_str(), static_cast<ull>(t.lines), static_cast<ull>(t.skipped),
                         static_cast<ull>(t.out_of_order));
  for (const BadLine& b : t.bad)
    out += strf("  skipped  line %llu: %s\n", static_cast<ull>(b.line), b.reason.c_str());
  if (t.skipped > t.bad.size())
    out += strf("  skipped  and %llu more\n", static_cast<ull>(t.skipped - t.bad.size()));
  return out;
}

std::string facts(const Trace& t, const TraceStats& s) {
  std::string out = strf("requests   %llu in %.3f s", static_cast<ull>(s.requests), s.span_s);
  if (s.span_s > 0) out += strf(", %.2f a second", static_cast<double>(s.requests) / s.span_s);
  out += strf("\nstamps     %llu distinct times; %.1f requests at one on average, %llu at most\n",
              static_cast<ull>(s.stamps), share(s.requests, s.stamps),
              static_cast<ull>(s.per_stamp_max));
  out += lengths("input", s.input) + lengths("output", s.output);
  out +=
      strf("blocks     %llu of %llu tokens, %llu distinct, %.2f %% of these seen once\n",
           static_cast<ull>(s.blocks), static_cast<ull>(t.block_tokens),
           static_cast<ull>(s.distinct_blocks), 100 * share(s.blocks_seen_once, s.distinct_blocks));
  out += strf(
      "prefixes   %llu leading blocks in every request; %llu requests share nothing beyond "
      "them\n",
      static_cast<ull>(s.shared_by_all), static_cast<ull>(s.roots));
  out +=
      strf("ids        %s; %s\n", s.ids_dense ? "dense from 0 in order of first use" : "not dense",
           s.ids_many_parents ? strf("%llu follow more than one parent: not a prefix tree",
                                     static_cast<ull>(s.ids_many_parents))
                                    .c_str()
                              : "a prefix tree");
  return out;
}

std::string curve_row(const HitCurve& c, const CacheHits& h, const std::string& tokens) {
  const std::string held =
      h.capacity_blocks == kUnlimited ? "-" : std::to_string(h.capacity_blocks);
  return strf("%10s %10s %10llu   %.6f   %.6f     %.6f\n", tokens.c_str(), held.c_str(),
              static_cast<ull>(h.hit_blocks), c.block_rate(h), c.token_rate(h),
              c.full_block_rate(h));
}

std::string curve_table(const Analysis& a) {
  std::string out =
      "\nLRU hit rates of one cache, requests in order\n"
      "    tokens     blocks hit blocks block rate token rate full-block rate\n";
  for (size_t i = 0; i < a.curve.points.size(); ++i)
    out += curve_row(a.curve, a.curve.points[i], tokens_text(a.capacities_tokens[i]));
  return out + curve_row(a.curve, a.curve.infinite, "infinite");
}

std::string orders_text(const Analysis& a) {
  if (a.orders.empty()) return {};
  std::string out = "\nblock rate by eviction order\n    tokens";
  out += strf(" %9s", "lru");
  for (const EvictionCurve& o : a.orders) out += strf(" %9s", o.order.c_str());
  for (size_t i = 0; i < a.curve.points.size(); ++i) {
    out += strf("\n%10s %9.6f", tokens_text(a.capacities_tokens[i]).c_str(),
                a.curve.block_rate(a.curve.points[i]));
    for (const EvictionCurve& o : a.orders) out += strf(" %9.6f", a.curve.block_rate(o.points[i]));
  }
  return out + "\n";
}

// Explains, where it happens, why the longest match alone must not decide.
std::string black_hole(const Analysis& a) {
  for (const RoutingHits& r : a.routes)
    if (r.black_hole)
      return strf(
          "%s: %.1f %% of all requests go to one of %llu nodes. Every prompt begins with the same "
          "%llu blocks (a system prompt), so the node that served the first request has the "
          "longest match for the next, and for all that follow; the other caches stay empty. Do "
          "not count a match that every prompt has (nontrivial).",
          r.route.c_str(), 100 * r.requests_max_share, static_cast<ull>(a.route_nodes),
          static_cast<ull>(a.stats.shared_by_all));
  return {};
}

std::string routes_text(const Analysis& a) {
  if (a.routes.empty()) return {};
  std::string out = strf(
      "\nhit rates of %llu local caches of %s tokens, by routing rule\n"
      "      rule block rate token rate full-block rate nodes used  busiest\n",
      static_cast<ull>(a.route_nodes), tokens_text(a.route_tokens).c_str());
  for (const RoutingHits& r : a.routes)
    out += strf("%10s   %.6f   %.6f        %.6f %10llu  %5.1f %%\n", r.route.c_str(),
                a.curve.block_rate(r.hits), a.curve.token_rate(r.hits),
                a.curve.full_block_rate(r.hits), static_cast<ull>(r.nodes_used),
                100 * r.requests_max_share);
  const std::string hole = black_hole(a);
  return hole.empty() ? out : out + "black hole: " + hole + "\n";
}

const std::pair<const char*, const char*> kDefinitions[] = {
    {"h", "leading blocks of a prompt that are present when it arrives"},
    {"block_rate", "sum of h / sum of blocks; a partial last block counts as one block"},
    {"token_rate",
     "sum of min(block tokens * h, input tokens) / sum of input tokens; a partial block counts its "
     "own tokens and hits only for an identical prompt"},
    {"full_block_rate", "block_rate with partial blocks left out of prompts and cache altogether"},
    {"capacity", "floor(tokens / block tokens) blocks; answers never enter a cache"},
    {"touch", "after matching, a prompt's blocks are touched or inserted from last to first"},
};

std::string definitions_text() {
  std::string out = "\ndefinitions\n";
  for (const auto& [word, meaning] : kDefinitions) out += strf("  %-15s  %s\n", word, meaning);
  return out;
}

std::string prediction_text(const Analysis& a) {
  if (!a.prediction) return {};
  const Prediction& p = *a.prediction;
  const std::string pool =
      p.capacity_blocks == kUnlimited ? "unlimited" : std::to_string(p.capacity_blocks) + " blocks";
  return strf(
      "\nexpected of a cluster: %llu x %s, pooled %s of %llu tokens\n"
      "  %llu hit tokens of %llu = %.6f; %llu of %llu full blocks; %llu of %llu requests\n"
      "  full blocks only, in order of the trace; a prompt's last token is always "
      "computed\n",
      static_cast<ull>(a.asked->nodes),
      a.asked->node_blocks == kUnlimited
          ? "unlimited"
          : (std::to_string(a.asked->node_blocks) + " blocks").c_str(),
      pool.c_str(), static_cast<ull>(p.block_tokens), static_cast<ull>(p.hit_tokens),
      static_cast<ull>(p.input_tokens), share(p.hit_tokens, p.input_tokens),
      static_cast<ull>(p.hit_blocks), static_cast<ull>(p.full_blocks),
      static_cast<ull>(p.requests_with_hits), static_cast<ull>(p.requests));
}

Json lengths_json(const Distribution& d, uint64_t sum) {
  return {{"sum", sum},
          {"mean", d.mean()},
          {"min", static_cast<uint64_t>(d.min())},
          {"p50", d.percentile(50)},
          {"p90", d.percentile(90)},
          {"p99", d.percentile(99)},
          {"max", static_cast<uint64_t>(d.max())}};
}

Json capacity_json(uint64_t n) { return n == kUnlimited ? Json(nullptr) : Json(n); }

Json hits_json(const HitCurve& c, const CacheHits& h) {
  return {{"capacity_blocks", capacity_json(h.capacity_blocks)},
          {"hit_blocks", h.hit_blocks},
          {"hit_tokens", h.hit_tokens},
          {"hit_full_blocks", h.hit_full_blocks},
          {"block_rate", c.block_rate(h)},
          {"token_rate", c.token_rate(h)},
          {"full_block_rate", c.full_block_rate(h)}};
}

Json points_json(const Analysis& a, const std::vector<CacheHits>& points) {
  Json out = Json::array();
  for (size_t i = 0; i < points.size(); ++i) {
    Json point = {{"capacity_tokens", a.capacities_tokens[i]}};
    point.update(hits_json(a.curve, points[i]));
    out.push_back(std::move(point));
  }
  return out;
}

Json orders_json(const Analysis& a) {
  Json out = Json::object();
  for (const EvictionCurve& o : a.orders) out[o.order] = points_json(a, o.points);
  return out;
}

Json routing_json(const Analysis& a) {
  if (a.routes.empty()) return nullptr;
  Json rules = Json::object();
  for (const RoutingHits& r : a.routes) {
    Json rule = hits_json(a.curve, r.hits);
    rule["nodes_used"] = r.nodes_used;
    rule["requests_max_share"] = r.requests_max_share;
    rule["black_hole"] = r.black_hole;
    rules[r.route] = std::move(rule);
  }
  const std::string hole = black_hole(a);
  return {{"nodes", a.route_nodes},
          {"node_tokens", a.route_tokens},
          {"trivial_blocks", a.stats.shared_by_all},
          {"rules", std::move(rules)},
          {"explanation", hole.empty() ? Json(nullptr) : Json(hole)}};
}

Json definitions_json() {
  Json out = Json::object();
  for (const auto& [word, meaning] : kDefinitions) out[word] = meaning;
  return out;
}

Json blocks_json(const Trace& t, const Analysis& a) {
  const TraceStats& s = a.stats;
  return {{"tokens", t.block_tokens},        {"total", s.blocks},
          {"full", a.curve.full_blocks},     {"distinct", s.distinct_blocks},
          {"seen_once", s.blocks_seen_once}, {"shared_by_all", s.shared_by_all},
          {"ids_dense", s.ids_dense},        {"ids_many_parents", s.ids_many_parents}};
}

Json prediction_json(const Analysis& a) {
  if (!a.prediction) return nullptr;
  const Prediction& p = *a.prediction;
  return {{"nodes", a.asked->nodes},
          {"node_blocks", capacity_json(a.asked->node_blocks)},
          {"capacity_blocks", capacity_json(p.capacity_blocks)},
          {"block_tokens", p.block_tokens},
          {"requests", p.requests},
          {"requests_with_hits", p.requests_with_hits},
          {"input_tokens", p.input_tokens},
          {"full_blocks", p.full_blocks},
          {"hit_blocks", p.hit_blocks},
          {"hit_tokens", p.hit_tokens},
          {"hit_ratio_tokens", share(p.hit_tokens, p.input_tokens)}};
}

}  // namespace

Result<uint64_t> parse_tokens(std::string_view text) {
  double scale = 1;
  std::string_view digits = text;
  if (text.ends_with('K') || text.ends_with('k')) scale = 1e3;
  if (text.ends_with('M') || text.ends_with('m')) scale = 1e6;
  if (text.ends_with('G') || text.ends_with('g')) scale = 1e9;
  if (scale > 1) digits.remove_suffix(1);
  const auto n = parse_number(digits);
  if (!n || *n < 0 || *n * scale > 1e15)
    return fail(Code::kInvalid, "'%s' is not a number of tokens: want 300000, 0.3M or 10M",
                escape(text).c_str());
  return static_cast<uint64_t>(std::llround(*n * scale));
}

std::string tokens_text(uint64_t tokens) {
  const double n = static_cast<double>(tokens);
  if (tokens >= 100'000 && tokens % 1000 == 0) return number_text(n / 1e6) + "M";
  return std::to_string(tokens);
}

Result<Analysis> analyze(const Trace& trace, const AnalysisOptions& options) {
  Analysis a;
  a.stats = describe(trace);
  a.capacities_tokens = options.capacities_tokens;
  std::vector<uint64_t> capacities;
  for (const uint64_t tokens : options.capacities_tokens)
    capacities.push_back(tokens / trace.block_tokens);
  const Numbered prompts = number_blocks(trace.records, trace.block_tokens);
  a.curve = lru_curve(prompts, capacities);
  for (const std::string& order : options.orders) {
    MC_TRY(auto curve, eviction_curve(prompts, order, capacities));
    a.orders.push_back(std::move(curve));
  }
  a.route_nodes = options.route_nodes;
  a.route_tokens = options.route_tokens;
  if (options.route_nodes) {
    const RoutingOptions routing = {.nodes = options.route_nodes,
                                    .node_blocks = options.route_tokens / trace.block_tokens,
                                    .trivial_blocks = a.stats.shared_by_all,
                                    .seed = options.seed};
    MC_TRY(a.routes, routing_study(prompts, routing));
  }
  a.asked = options.predict;
  if (options.predict) {
    MC_TRY(a.prediction, predict_hits(trace.records, trace.block_tokens, *options.predict));
  }
  return a;
}

std::string analysis_text(const Trace& trace, const Analysis& a) {
  return reading(trace) + facts(trace, a.stats) + curve_table(a) + orders_text(a) + routes_text(a) +
         prediction_text(a) + definitions_text();
}

Json analysis_json(const Trace& t, const Analysis& a) {
  const TraceStats& s = a.stats;
  Json bad = Json::array();
  for (const BadLine& b : t.bad) bad.push_back({{"line", b.line}, {"reason", b.reason}});
  return {{"schema", "mc-replay-analyze/1"},
          {"trace", t.name},
          {"lines", t.lines},
          {"malformed", t.skipped},
          {"out_of_order", t.out_of_order},
          {"bad_lines", bad},
          {"requests", s.requests},
          {"span_s", s.span_s},
          {"stamps", s.stamps},
          {"per_stamp_max", s.per_stamp_max},
          {"input_tokens", lengths_json(s.input, s.input_tokens)},
          {"output_tokens", lengths_json(s.output, s.output_tokens)},
          {"blocks", blocks_json(t, a)},
          {"roots", s.roots},
          {"infinite", hits_json(a.curve, a.curve.infinite)},
          {"lru", points_json(a, a.curve.points)},
          {"orders", orders_json(a)},
          {"routing", routing_json(a)},
          {"prediction", prediction_json(a)},
          {"definitions", definitions_json()}};
}

}  // namespace mc::trace
