// Makes traces that look like real ones, from a profile and a seed. The same profile and seed give
// the same trace.
//
// Generators, by the profile's "generator":
//   conversation  sessions of a chat service. Session starts are Poisson with a slowly rising rate;
//                 simulation begins a warm-up earlier so that the first requests kept are already
//                 a mixture of new and running sessions. A session's first prompt is the shared
//                 system prompt and a fresh message; each later turn comes a log-normal gap after
//                 the one before and either continues (prompt, answer and a new message: the
//                 previous prompt's full blocks are shared), branches (keeps a fraction of them) or
//                 sends the previous prompt again. The prompt's partial last block is never shared,
//                 except by a resend.
//   tool-agent    conversations, their shortest answers left out, and calls of tools, each class
//   with
//                 an instruction that all its calls share
//   documents     Poisson arrivals of short chats that share nothing, of questions about documents
//                 of their own, and of several questions about one document; a random chat or
//                 document goes on next
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

// Sorted by time from about 0; exactly the requests asked for; ids dense from 0 in order of first
// use and a prefix tree. Errors: kInvalid for a bad profile or one that yields too few requests;
// `where` is its file, for messages.
Result<std::vector<TraceRequest>> synthesize(const Json& profile, const std::string& where,
                                             const SynthOptions& options);
Result<std::vector<TraceRequest>> synthesize_conversation(const ConversationProfile& profile,
                                                          const SynthOptions& options);
Result<std::vector<TraceRequest>> synthesize_documents(const DocumentsProfile& profile,
                                                       const SynthOptions& options);
Result<std::vector<TraceRequest>> synthesize_tool_agent(const ToolAgentProfile& profile,
                                                        const SynthOptions& options);
// How many requests a session has on average, with time for all of them.
double mean_session_requests(const ConversationProfile& profile, uint64_t seed);

std::vector<std::string> generators();  // their names

}  // namespace mc::trace
