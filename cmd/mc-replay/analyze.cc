#include "trace/analyze/analysis.h"

#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "cmd/mc-replay/trace_flags.h"
#include "cmd/mc-replay/verbs.h"

namespace mc::replay {
namespace {

struct AnalyzeOptions {
  std::string trace, positional;
  bool strict = false;
  uint64_t limit = 0, block = trace::kBlockTokens, cluster_block = 0, nodes = 1;
  std::string cache_tokens;
  std::vector<std::string> capacities = trace::kCapacities, eviction;
  std::string route_nodes;
  uint64_t seed = 0;
  std::string route_tokens = "3M";

  void describe(OptionList& v) {
    v("trace", trace, "trace file (JSONL); also the first word");
    v("strict", strict, "refuse the first malformed or out-of-order line; else skip and count");
    v("limit", limit, "read only this many requests; 0: all");
    v("block", block, "tokens of a hash id");
    v("capacities", capacities, "cache sizes in tokens of the hit-rate table: 300000, 0.3M, 10M");
    v("eviction", eviction,
      "other orders than LRU for the table: lfu, fifo, sieve, s3-fifo, s3-fifo-0, opt; or 'all'");
    v("route-nodes", route_nodes,
      "compare routing rules over this many local caches: random, longest match, longest match "
      "that is not trivial, sticky, and one pool; empty: do not");
    v("route-tokens", route_tokens, "tokens that each of --route-nodes caches");
    v("seed", seed, "of the random routing rule");
    v("cache-tokens", cache_tokens,
      "predict the hits of a cluster whose nodes cache this many tokens each; 'inf': all");
    v("nodes", nodes, "nodes that pool their caches, for --cache-tokens");
    v("cluster-block", cluster_block,
      "tokens of the cluster's block, for --cache-tokens; 0: --block");
  }
};

Result<trace::AnalysisOptions> asked(const AnalyzeOptions& o) {
  trace::AnalysisOptions out;
  for (const std::string& text : o.capacities) {
    MC_TRY(const uint64_t tokens, trace::parse_tokens(text));
    out.capacities_tokens.push_back(tokens);
  }
  out.orders = o.eviction;
  if (o.eviction == std::vector<std::string>{"all"}) out.orders = trace::kEvictionOrders;
  if (!o.route_nodes.empty()) {
    const auto nodes = parse_number(o.route_nodes);
    if (!nodes || *nodes < 1 || *nodes > 1e6 || *nodes != std::floor(*nodes))
      return fail(Code::kInvalid, "--route-nodes %s: want 1 to 1000000 caches",
                  escape(o.route_nodes).c_str());
    out.route_nodes = static_cast<uint64_t>(*nodes);
  }
  out.seed = o.seed;
  MC_TRY(out.route_tokens, trace::parse_tokens(o.route_tokens));
  if (o.cache_tokens.empty()) return out;
  out.predict.emplace();
  out.predict->nodes = o.nodes;
  out.predict->cluster_block_tokens = o.cluster_block;
  if (o.cache_tokens != "inf") {
    MC_TRY(const uint64_t tokens, trace::parse_tokens(o.cache_tokens));
    out.predict->node_blocks = tokens / (o.cluster_block ? o.cluster_block : o.block);
  }
  return out;
}

Result<int> analyze(const AnalyzeOptions& o, const Context& context) {
  MC_TRY_(check_one_trace(o.positional, o.trace));
  const std::string& path = o.trace.empty() ? o.positional : o.trace;
  if (path.empty()) return fail(Code::kInvalid, "no trace: give a file, as mc-replay analyze FILE");
  if (o.block < 1 || o.block > trace::kLengthMax)
    return fail(Code::kInvalid, "--block must be 1 to %llu tokens",
                static_cast<unsigned long long>(trace::kLengthMax));
  MC_TRY(const trace::AnalysisOptions options, asked(o));
  trace::ReadOptions read;
  read.strict = o.strict;
  read.limit = o.limit;
  read.block_tokens = o.block;
  MC_TRY(const trace::Trace trace, trace::read_trace(path, read));
  if (trace.skipped)
    log_warn("replay", "%s: skipped %llu malformed lines; the first is line %llu: %s", path.c_str(),
             static_cast<unsigned long long>(trace.skipped),
             static_cast<unsigned long long>(trace.bad[0].line), trace.bad[0].reason.c_str());
  MC_TRY(const trace::Analysis analysis, trace::analyze(trace, options));
  const std::string out = context.json ? dump_json(trace::analysis_json(trace, analysis)) + "\n"
                                       : trace::analysis_text(trace, analysis);
  std::fputs(out.c_str(), stdout);
  return 0;
}

}  // namespace

void add_analyze(Program& program) {
  program.verb<AnalyzeOptions>(
      "analyze", "describe a trace, and compute the hit rates of caches",
      [](Verb& v, AnalyzeOptions& o) {
        v.positional("TRACE", o.positional, "trace file (JSONL)", false);
        v.example("mc-replay analyze conversation_trace.jsonl", "lengths, arrivals, hit rates");
        v.example("mc-replay analyze t.jsonl --eviction all --route-nodes 10",
                  "every eviction order, and ten local caches against one pool");
        v.example("mc-replay analyze t.jsonl --cache-tokens 1M --nodes 2 --output json",
                  "with the hits to expect of two nodes that cache a million tokens each");
        v.run_with([&o](Context& context) { return analyze(o, context); });
      });
}

}  // namespace mc::replay
