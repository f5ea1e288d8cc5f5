// Calls of tools among the requests of a trace: those that share a long instruction with all others
// of their kind, and nothing else with anybody.
//
// Thread: values; any thread. Pure.
#pragma once
#include "base/json.h"
#include "trace/records.h"

namespace mc::trace {

struct ToolSplit {
  Json tools;  // as in a profile of the tool-agent generator; empty: there are none
  Trace rest;  // the other requests, in order
};
// A kind is what begins with the same block, at least kToolShare of all requests and
// kToolRequestsMin, of which no more than kToolContinued share a block that the kind does not.
inline constexpr double kToolShare = 0.02, kToolContinued = 0.02;
inline constexpr uint64_t kToolRequestsMin = 20;
ToolSplit split_tools(const Trace& trace);

}  // namespace mc::trace
