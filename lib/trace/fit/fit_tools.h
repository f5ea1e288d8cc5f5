// Calls of tools among the requests of a trace: those that share a long instruction with all others
// of their kind, and nothing else with anybody.
//
// Thread: values; any thread. Pure.
#pragma once
#include <vector>

#include "trace/records/records.h"

namespace mc::trace {

struct ToolCalls {   // of one kind
  double share = 0;  // of all calls
  uint64_t shared_tokens = 0;
  std::vector<double> tail_tokens, output_tokens;  // of each call
};
struct ToolSplit {
  std::vector<ToolCalls> tools;  // the most called first
  Trace rest;                    // the other requests, in order
};
// A kind is what begins with the same block, at least kToolShare of all requests and
// kToolRequestsMin, of which no more than kToolContinued share a block that the kind does not.
inline constexpr double kToolShare = 0.02, kToolContinued = 0.02;
inline constexpr uint64_t kToolRequestsMin = 20;
ToolSplit split_tools(const Trace& trace);

}  // namespace mc::trace
