// Parses the JSON profile of a synthetic workload (configs/profiles/).
//
// Thread: values; any thread. Pure: reads no file; the caller passes the JSON.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/random.h"
#include "base/result.h"

namespace mc::trace {

// A distribution given by its values at a few quantile levels, 0 to 100 %, interpolated linearly in
// sign(x) log(1 + |x|): lengths span four decades and their tails matter.
class Knots {
 public:
  Knots() = default;
  // Errors: kInvalid unless the levels rise from 0 to 100 and the values never fall.
  static Result<Knots> make(std::vector<double> levels_percent, std::vector<double> values);
  double at(double quantile) const;  // in [0, 1]
  double draw(Random& random) const { return at(random.uniform()); }
  double low() const { return values_.front(); }
  double high() const { return values_.back(); }

 private:
  std::vector<double> levels_, values_;
};

struct LogNormal {
  double mu = 0, sigma = 0;
  double draw(Random& random) const { return random.lognormal(mu, sigma); }
};

// Chats that share one system prompt. Sessions start at random and last some turns; every turn
// sends the whole conversation again. synth.h says how each value is drawn.
struct ConversationProfile {
  uint64_t requests = 0;
  double span_s = 0;
  uint64_t slot_ms = 0;  // times are rounded down to this grid; 0: to 1 ms
  double warm_up_s = 0;  // simulated before the first request that is kept
  uint64_t system_prompt_tokens = 0;
  uint64_t input_max_tokens = 0;  // a session that would grow past it ends
  double sessions_per_request = 0;
  double rate_trend = 0;  // the rate rises from (1 - trend) to (1 + trend) of its mean
  double continue_a = 1, continue_b = 1;  // each session's chance of another turn ~ Beta(a, b)
  double continue_halved_at_tokens = 0;   // the chance falls as 1 / (1 + input / this)
  LogNormal turn_gap_s;
  double turn_gap_min_s = 0;
  double branch_share = 0, resend_share = 0;      // of turns after the first
  std::vector<double> large_message_probability;  // at turn 2, 3, ...; the last holds for the rest
  double large_message_above_tokens = 0;
  LogNormal large_message_tokens;
  Knots root_input_tokens, output_tokens, small_message_tokens;
  Knots branch_keep_fraction, branch_delta_tokens;
};

// Questions about long documents, and short chats that share nothing.
struct DocumentsProfile {
  uint64_t requests = 0;
  double rate_per_s = 0;
  // Shares of all requests; the rest are questions about shared documents.
  double short_share = 0, single_share = 0;
  double short_continue = 0;            // a chat's chance of another request; it shares no blocks
  uint64_t small_document_tokens = 0;   // smaller documents draw `questions_small`
  uint64_t questions_together_max = 0;  // more come in units of this many, in any order
  double repeat_share = 0;              // of later questions: an earlier prompt again
  Knots short_input, short_output, single_input, single_output;
  Knots shared_input, shared_output, question_tokens, questions, questions_small;
};

// Chats, and tool calls with one of a few long instructions.
struct ToolClass {
  double share = 0;  // of the tools' requests
  uint64_t shared_tokens = 0;
  Knots tail_tokens, output_tokens;
};
struct ToolAgentProfile {
  uint64_t requests = 0, chat_requests = 0;
  double span_s = 0;
  uint64_t chat_output_min = 0;  // chats with shorter answers are left out
  ConversationProfile chat;
  std::vector<ToolClass> tools;
};

Result<DocumentsProfile> parse_documents(const Json& profile, const std::string& where);
Result<ToolAgentProfile> parse_tool_agent(const Json& profile, const std::string& where);

// Errors: kInvalid with `where` and the key that is missing, unknown, of a wrong type or out of
// range.
Result<ConversationProfile> parse_conversation(const Json& profile, const std::string& where);

}  // namespace mc::trace
