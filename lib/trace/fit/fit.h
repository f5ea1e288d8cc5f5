// Fits a profile to a recorded trace.
// From the profile synthesize() makes similar traces of any length and seed, without the recorded
// prompts.
//
// Every request either begins a session (it shares nothing beyond the blocks that all prompts
// have), continues the last request that had its deepest known block, keeps a part of that prompt,
// or sends it again. Lengths, gaps and shares are measured on these. What a window hides (how
// likely a session continues, and how that falls with its length) is set so that a synthesized
// trace has the recorded share of new sessions and mean prompt.
//
// Tool calls that share long instructions (fit_tools.h) are separated first: the profile is then
// one of the tool-agent generator, and its chats are fitted to the rest. Where prompts are
// questions about documents (fit_documents.h), it is one of the documents generator.
//
// Thread: values; any thread. Pure: no clock, no I/O; random numbers from a fixed seed.
// Errors: kInvalid for fewer than kFitRequestsMin requests, another block size than 512, a trace
// without a span.
#pragma once
#include <string>

#include "base/json_fwd.h"
#include "base/result.h"
#include "trace/records/records.h"

namespace mc::trace {

inline constexpr uint64_t kFitRequestsMin = 50;

struct FitShape {        // the targets of a fitted profile
  double new_share = 0;  // of requests that begin a session
  double mean_input = 0;
  double hit_rate = 0;  // of tokens, by an infinite cache
};
FitShape fit_shape(const Trace& trace);

// Measures traces of so many requests from a profile: the mean over a few seeds.
Result<FitShape> fit_trial(const Json& profile, uint64_t requests);

struct Fitted {
  std::string profile;  // JSON, for synthesize()
  FitShape want, got;   // of the trace, and fit_trial() of the profile
};
Result<Fitted> fit_profile(const Trace& trace);

}  // namespace mc::trace
