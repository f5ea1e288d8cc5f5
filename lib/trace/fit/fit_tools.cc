#include "trace/fit/fit_tools.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "trace/analyze/stats.h"

namespace mc::trace {
namespace {

struct Kind {  // requests that begin with the same block
  std::vector<size_t> requests;
  uint64_t shared = 0;  // leading full blocks that all of them have
};

// Whole blocks that leave at least one unshared token to each request.
uint64_t shared_blocks(const std::vector<TraceRequest>& all, const std::vector<size_t>& of) {
  const auto& model = all[of.front()].hash_ids;
  uint64_t shared = model.size();
  for (const size_t i : of) {
    const TraceRequest& r = all[i];
    shared = std::min(shared, (std::max<uint64_t>(r.input_length, 1) - 1) / kBlockTokens);
    const auto differ =
        std::mismatch(model.begin(), model.begin() + static_cast<long>(shared), r.hash_ids.begin());
    shared = static_cast<uint64_t>(differ.first - model.begin());
  }
  return shared;
}

// Counts requests that share a block with an earlier one beyond the blocks that all share.
uint64_t continued(const std::vector<TraceRequest>& all, const Kind& kind) {
  std::unordered_set<uint64_t> seen;
  uint64_t n = 0;
  for (const size_t i : kind.requests) {
    const auto& ids = all[i].hash_ids;
    n += ids.size() > kind.shared && seen.contains(ids[kind.shared]);
    if (ids.size() > kind.shared) seen.insert(ids[kind.shared]);
  }
  return n;
}

ToolCalls calls_of(const std::vector<TraceRequest>& all, const Kind& kind, double share) {
  ToolCalls out{share, kind.shared * kBlockTokens, {}, {}};
  for (const size_t i : kind.requests) {
    out.tail_tokens.push_back(static_cast<double>(all[i].input_length - out.shared_tokens));
    out.output_tokens.push_back(static_cast<double>(all[i].output_length));
  }
  return out;
}

}  // namespace

ToolSplit split_tools(const Trace& trace) {
  const auto& all = trace.records;
  std::unordered_map<uint64_t, Kind> by_first;
  for (size_t i = 0; i < all.size(); ++i)
    if (full_blocks(all[i].input_length, kBlockTokens) > 0)
      by_first[all[i].hash_ids[0]].requests.push_back(i);
  const auto least =
      std::max(static_cast<double>(kToolRequestsMin), kToolShare * static_cast<double>(all.size()));
  std::vector<Kind> kinds;
  for (auto& [id, kind] : by_first) {
    const auto n = static_cast<double>(kind.requests.size());
    if (n < least) continue;
    kind.shared = shared_blocks(all, kind.requests);
    if (kind.shared == 0 || static_cast<double>(continued(all, kind)) > kToolContinued * n)
      continue;
    kinds.push_back(std::move(kind));
  }
  // The largest first; of equals, as they came.
  std::sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
    return a.requests.size() != b.requests.size() ? a.requests.size() > b.requests.size()
                                                  : a.requests[0] < b.requests[0];
  });
  std::vector<bool> called(all.size());
  size_t calls = 0;
  for (const Kind& kind : kinds) {
    calls += kind.requests.size();
    for (const size_t i : kind.requests) called[i] = true;
  }
  ToolSplit out;
  out.rest.name = trace.name;
  out.rest.block_tokens = trace.block_tokens;
  for (const Kind& kind : kinds)
    out.tools.push_back(calls_of(
        all, kind, static_cast<double>(kind.requests.size()) / static_cast<double>(calls)));
  for (size_t i = 0; i < all.size(); ++i)
    if (!called[i]) out.rest.records.push_back(all[i]);
  return out;
}

}  // namespace mc::trace
