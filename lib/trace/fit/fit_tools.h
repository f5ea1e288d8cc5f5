// Finds tool calls in a trace by the long instructions that they share.
// A tool call shares its instruction with all others of its kind, and nothing else with any
// request.
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
// A kind is a set of requests with the same first block. It has at least a share kToolShare of all
// requests, and at least kToolRequestsMin. At most a share kToolContinued of it shares a block that
// the whole kind does not.
inline constexpr double kToolShare = 0.02, kToolContinued = 0.02;
inline constexpr uint64_t kToolRequestsMin = 20;
ToolSplit split_tools(const Trace& trace);

}  // namespace mc::trace
