// Synthesizes realistic traces from a profile and a seed.
// The same profile and seed give the same trace.
//
// Generators, by the profile's "generator":
//   conversation  sessions of a chat service. Session starts are Poisson with a slowly rising rate;
//                 simulation begins a warm-up earlier so that the first requests kept are already
//                 a mixture of new and running sessions. A session's first prompt is the shared
//                 system prompt and a fresh message. Each later turn comes a log-normal gap after
//                 the one before. It continues (prompt, answer and a new message: it shares the
//                 previous prompt's full blocks), branches (keeps a fraction of them) or sends the
//                 previous prompt again. Only a resend shares the prompt's partial last block.
//   tool-agent    conversations without their shortest answers, and tool calls; each class of calls
//                 shares one instruction
//   documents     Poisson arrivals of short chats that share nothing, of questions about unshared
//                 documents, and of several questions about one document; each arrival continues
//                 a random chat or document
//
// Thread: values; any thread. Pure: no clock, no I/O; random numbers from the seed.
// Source: the statistics of the public conversation trace; Mooncake, Table 3 and section 7.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "trace/records/records.h"
#include "trace/synth/profile.h"

namespace mc::trace {

struct SynthOptions {
  uint64_t seed = 0;
  uint64_t requests = 0;  // 0: the profile's; else the span is scaled so that the rate stays
};

// Returns: exactly the requested number, sorted by time from about 0. Ids are dense from 0 in order
// of first use and form a prefix tree. Errors: kInvalid, naming the file `where`, for a bad profile
// and for one that yields too few requests.
Result<std::vector<TraceRequest>> synthesize(const Json& profile, const std::string& where,
                                             const SynthOptions& options);
Result<std::vector<TraceRequest>> synthesize_conversation(const ConversationProfile& profile,
                                                          const SynthOptions& options);
Result<std::vector<TraceRequest>> synthesize_documents(const DocumentsProfile& profile,
                                                       const SynthOptions& options);
Result<std::vector<TraceRequest>> synthesize_tool_agent(const ToolAgentProfile& profile,
                                                        const SynthOptions& options);
// The mean number of requests of a session that is not cut off by the end of the trace.
double mean_session_requests(const ConversationProfile& profile, uint64_t seed);

std::vector<std::string> generators();  // their names

}  // namespace mc::trace
