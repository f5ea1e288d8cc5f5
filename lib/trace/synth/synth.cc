#include "trace/synth/synth.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/json.h"
#include "base/random.h"
#include "base/units.h"
#include "trace/synth/synth_common.h"

namespace mc::trace {
namespace {

constexpr uint64_t kTurnsMax = 1000;  // of a session; chances near 1 would go on for ever

struct Request {
  double at_s = 0;
  uint64_t input = 0, output = 0;
  std::vector<uint64_t> path;  // block numbers, not yet dense
};

class Conversations {
 public:
  Conversations(const ConversationProfile& profile, double span_s, uint64_t requests, uint64_t seed)
      : p_(profile), span_s_(span_s), random_(seed) {
    mean_rate_ = p_.sessions_per_request * static_cast<double>(requests) / span_s;
    system_blocks_ = p_.system_prompt_tokens / kBlockTokens;
    next_block_ = system_blocks_;
    horizon_s_ = p_.warm_up_s + 4 * span_s + 1;
  }

  // The first `n` requests after the warm-up, in order; fewer when the profile yields fewer.
  std::vector<Request> first(uint64_t n) {
    const double step = span_s_ / 8;
    for (double until = p_.warm_up_s + span_s_; until < horizon_s_; until += step) {
      while (next_start_s_ < until) start_session();
      // Every session that began before `until` is here, so no earlier request can still appear.
      const auto known =
          static_cast<uint64_t>(std::count_if(made_.begin(), made_.end(), [&](const Request& r) {
            return r.at_s >= p_.warm_up_s && r.at_s < until;
          }));
      if (known >= n) break;
    }
    std::erase_if(made_, [&](const Request& r) { return r.at_s < p_.warm_up_s; });
    std::stable_sort(made_.begin(), made_.end(),
                     [](const Request& a, const Request& b) { return a.at_s < b.at_s; });
    made_.resize(std::min<size_t>(made_.size(), n));
    for (Request& r : made_) r.at_s -= p_.warm_up_s;
    return std::move(made_);
  }

  double session_requests(uint64_t sessions) {
    for (uint64_t i = 0; i < sessions; ++i) {
      run_session(0);
      seen_ += made_.size();
      made_.clear();
    }
    return static_cast<double>(seen_) / static_cast<double>(sessions);
  }

 private:
  double rate_at(double s) const {
    const double through = std::clamp((s - p_.warm_up_s) / span_s_, 0.0, 1.0);
    return mean_rate_ * (1 + p_.rate_trend * (2 * through - 1));
  }

  // A Poisson process of varying rate, by thinning one of the highest rate.
  void start_session() {
    const double highest = mean_rate_ * (1 + p_.rate_trend);
    const double at_s = next_start_s_;
    do {
      next_start_s_ += random_.exponential(1 / highest);
    } while (!random_.chance(rate_at(next_start_s_) / highest));
    run_session(at_s);
  }

  void run_session(double at_s) {
    const double again = random_.beta(p_.continue_a, p_.continue_b);
    Request r = root(at_s);
    for (uint64_t turn = 1; turn < kTurnsMax; ++turn) {
      made_.push_back(r);
      // Without an unshared full block a next turn could share nothing. Every cache would see a new
      // session, so it counts as one.
      if (full_blocks(r.input, kBlockTokens) <= system_blocks_) return;
      const double tired = 1 + static_cast<double>(r.input) / p_.continue_halved_at_tokens;
      if (!random_.chance(again / tired)) return;
      r.at_s += std::max(p_.turn_gap_min_s, p_.turn_gap_s.draw(random_));
      if (r.at_s >= horizon_s_ || !next_turn(r, turn)) return;
      r.output = output();
    }
  }

  Request root(double at_s) {
    Request r;
    r.at_s = at_s;
    r.input =
        whole_tokens(p_.root_input_tokens.at(root_level_.draw(random_)), 1, p_.input_max_tokens);
    r.output = output();
    for (uint64_t i = 0; i < system_blocks_; ++i) r.path.push_back(i);
    extend(r);
    return r;
  }

  // Makes the session's next request from this one; false when the session is too long.
  bool next_turn(Request& r, uint64_t turn) {
    const double kind = random_.uniform();
    if (kind < p_.resend_share) return true;
    const uint64_t full = full_blocks(r.input, kBlockTokens);
    const double spoken = static_cast<double>(r.input + r.output);
    uint64_t keep = full;
    double input = 0;
    if (kind < p_.resend_share + p_.branch_share) {
      keep =
          whole_tokens(p_.branch_keep_fraction.draw(random_) * static_cast<double>(full), 0, full);
      input = spoken + p_.branch_delta_tokens.draw(random_);
    } else {
      input = spoken + message(turn);
    }
    if (input > static_cast<double>(p_.input_max_tokens)) return false;
    r.input = whole_tokens(input, whole_tokens(p_.root_input_tokens.low(), 1, kLengthMax),
                           p_.input_max_tokens);
    keep = std::clamp(keep, system_blocks_ + 1, full);
    r.path.resize(std::min(keep, full_blocks(r.input, kBlockTokens)));
    extend(r);
    return true;
  }

  double message(uint64_t turn) {
    const auto& chances = p_.large_message_probability;
    if (!random_.chance(chances[std::min<size_t>(turn, chances.size()) - 1]))
      return p_.small_message_tokens.draw(random_);
    return std::max(p_.large_message_above_tokens, p_.large_message_tokens.draw(random_));
  }

  uint64_t output() {
    return whole_tokens(p_.output_tokens.at(output_level_.draw(random_)), 0, kLengthMax);
  }

  void extend(Request& r) {
    while (r.path.size() < blocks(r.input, kBlockTokens)) r.path.push_back(next_block_++);
  }

  const ConversationProfile& p_;
  double span_s_, mean_rate_ = 0, horizon_s_ = 0, next_start_s_ = 0;
  uint64_t system_blocks_ = 0, next_block_ = 0, seen_ = 0;
  Random random_;
  Strata root_level_, output_level_;
  std::vector<Request> made_;
};

struct Generator {
  const char* name;
  Result<std::vector<TraceRequest>> (*make)(const Json&, const std::string&, const SynthOptions&);
};

Result<std::vector<TraceRequest>> conversation(const Json& profile, const std::string& where,
                                               const SynthOptions& options) {
  MC_TRY(const ConversationProfile parsed, parse_conversation(profile, where));
  return synthesize_conversation(parsed, options);
}

Result<std::vector<TraceRequest>> documents(const Json& profile, const std::string& where,
                                            const SynthOptions& options) {
  MC_TRY(const DocumentsProfile parsed, parse_documents(profile, where));
  return synthesize_documents(parsed, options);
}

Result<std::vector<TraceRequest>> tool_agent(const Json& profile, const std::string& where,
                                             const SynthOptions& options) {
  MC_TRY(const ToolAgentProfile parsed, parse_tool_agent(profile, where));
  return synthesize_tool_agent(parsed, options);
}

constexpr Generator kGenerators[] = {
    {"conversation", conversation}, {"documents", documents}, {"tool-agent", tool_agent}};

}  // namespace

Result<std::vector<TraceRequest>> synthesize_conversation(const ConversationProfile& p,
                                                          const SynthOptions& options) {
  const uint64_t n = options.requests ? options.requests : p.requests;
  if (n > kRecordsMax)
    return fail(Code::kInvalid, "%llu requests: %llu at most", static_cast<unsigned long long>(n),
                static_cast<unsigned long long>(kRecordsMax));
  const double span_s = p.span_s * static_cast<double>(n) / static_cast<double>(p.requests);
  std::vector<Request> requests = Conversations(p, span_s, n, options.seed).first(n);
  if (requests.size() < n)
    return fail(Code::kInvalid,
                "only %zu of %llu requests in four spans: raise "
                "sessions-per-request",
                requests.size(), static_cast<unsigned long long>(n));
  // The span of n requests is random; stretching them a little gives the requested span.
  const double stretch = requests.back().at_s > 0 ? span_s / requests.back().at_s : 1;
  const uint64_t slot = std::max<uint64_t>(p.slot_ms, 1);
  std::unordered_map<uint64_t, uint64_t> dense;
  std::vector<TraceRequest> out;
  out.reserve(n);
  for (Request& r : requests) {
    const auto ms = static_cast<uint64_t>(r.at_s * stretch * 1000);
    for (uint64_t& block : r.path) block = dense.try_emplace(block, dense.size()).first->second;
    out.push_back({ms / slot * slot, r.input, r.output, std::move(r.path)});
  }
  return out;
}

double mean_session_requests(const ConversationProfile& p, uint64_t seed) {
  constexpr uint64_t kSessions = 5000;
  return Conversations(p, p.span_s, p.requests, seed).session_requests(kSessions);
}

Result<std::vector<TraceRequest>> synthesize(const Json& profile, const std::string& where,
                                             const SynthOptions& options) {
  MC_TRY(const std::string wanted, get_string(profile, "generator"));
  for (const Generator& g : kGenerators)
    if (wanted == g.name) return g.make(profile, where, options);
  std::string names;
  for (const std::string& g : generators()) names += " " + g;
  return fail(Code::kInvalid, "%s: unknown generator '%s'; there are:%s", where.c_str(),
              escape(wanted).c_str(), names.c_str());
}

std::vector<std::string> generators() {
  std::vector<std::string> out;
  for (const Generator& g : kGenerators) out.push_back(g.name);
  return out;
}

}  // namespace mc::trace
