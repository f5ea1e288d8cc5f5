#include "trace/synth/profile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/json.h"
#include "base/options.h"
#include "base/units.h"
#include "trace/records/records.h"

namespace mc::trace {
namespace {

double squash(double x) { return std::copysign(std::log1p(std::abs(x)), x); }
double stretch(double y) { return std::copysign(std::expm1(std::abs(y)), y); }

// Reads the members of one object and finds unknown ones.
class Members {
 public:
  Members(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  Result<double> number(const char* key, double low, double high) {
    MC_TRY(const Json* v, find(key));
    if (!v->is_number()) return wrong(key, "want a number");
    const double d = v->get<double>();
    if (!(d >= low && d <= high))
      return wrong(key, strf("%s is not in [%s, %s]", number_text(d).c_str(),
                             number_text(low).c_str(), number_text(high).c_str()));
    return d;
  }
  Result<uint64_t> count(const char* key, uint64_t low, uint64_t high) {
    MC_TRY(const double d, number(key, static_cast<double>(low), static_cast<double>(high)));
    if (d != std::floor(d)) return wrong(key, "want a whole number");
    return static_cast<uint64_t>(d);
  }
  Result<std::vector<double>> list(const char* key, double low, double high) {
    MC_TRY(const Json* v, find(key));
    if (!v->is_array() || v->empty() || v->size() > 1000)
      return wrong(key, "want a list of 1 to 1000 numbers");
    std::vector<double> out;
    for (const Json& item : *v) {
      if (!item.is_number() || !(item.get<double>() >= low && item.get<double>() <= high))
        return wrong(key, strf("%s is not a number in [%s, %s]", escape(item.dump()).c_str(),
                               number_text(low).c_str(), number_text(high).c_str()));
      out.push_back(item.get<double>());
    }
    return out;
  }
  Result<LogNormal> lognormal(const char* key) {
    MC_TRY(const auto v, list(key, -20, 20));
    if (v.size() != 2 || v[1] < 0) return wrong(key, "want [mean, deviation] of the logarithm");
    return LogNormal{v[0], v[1]};
  }
  Result<Knots> knots(const char* key, const std::vector<double>& levels, double low, double high) {
    MC_TRY(auto values, list(key, low, high));
    auto made = Knots::make(levels, std::move(values));
    if (!made) return wrong(key, made.error().what);
    return made;
  }
  Result<> text(const char* key) {
    MC_TRY(const Json* v, find(key));
    if (!v->is_string()) return wrong(key, "want a string");
    return {};
  }
  Result<const Json*> member(const char* key, bool array) {
    MC_TRY(const Json* v, find(key));
    if (array ? !v->is_array() || v->empty() || v->size() > 100 : !v->is_object())
      return wrong(key, array ? "want a list of 1 to 100 objects" : "want an object");
    return v;
  }
  Result<> no_others() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string near = nearest(key, known_);
      return fail(Code::kInvalid, "%s: unknown key '%s'%s", where_.c_str(), escape(key).c_str(),
                  near.empty() ? "" : (": did you mean '" + near + "'?").c_str());
    }
    return {};
  }
  Failure wrong(const char* key, const std::string& why) const {
    return fail(Code::kInvalid, "%s: \"%s\": %s", where_.c_str(), key, why.c_str());
  }

 private:
  Result<const Json*> find(const char* key) {
    known_.push_back(key);
    const auto at = object_.find(key);
    if (at == object_.end()) return fail(Code::kInvalid, "%s: no \"%s\"", where_.c_str(), key);
    return &*at;
  }

  const Json& object_;
  std::string where_;
  std::vector<std::string> known_;
};

Result<> read_sessions(Members& m, ConversationProfile& p) {
  MC_TRY(p.sessions_per_request, m.number("sessions-per-request", 0.001, 1));
  MC_TRY(p.rate_trend, m.number("rate-trend", 0, 0.99));
  MC_TRY(const auto beta, m.list("continue-beta", 0.01, 1000));
  if (beta.size() != 2) return m.wrong("continue-beta", "want [a, b]");
  p.continue_a = beta[0];
  p.continue_b = beta[1];
  MC_TRY(p.continue_halved_at_tokens, m.number("continue-halved-at-tokens", 1, 1e12));
  MC_TRY(p.turn_gap_s, m.lognormal("turn-gap-lognormal-s"));
  MC_TRY(p.turn_gap_min_s, m.number("turn-gap-min-s", 0, 1e6));
  MC_TRY(p.branch_share, m.number("branch-share", 0, 1));
  MC_TRY(p.resend_share, m.number("resend-share", 0, 1));
  if (p.branch_share + p.resend_share > 1)
    return m.wrong("branch-share", "more than 1 together with resend-share");
  return {};
}

Result<> read_lengths(Members& m, ConversationProfile& p) {
  const double most = static_cast<double>(kLengthMax);
  MC_TRY(p.large_message_probability, m.list("large-message-probability", 0, 1));
  MC_TRY(p.large_message_above_tokens, m.number("large-message-above-tokens", 0, most));
  MC_TRY(p.large_message_tokens, m.lognormal("large-message-lognormal-tokens"));
  MC_TRY(const auto levels, m.list("quantile-levels-percent", 0, 100));
  MC_TRY(p.root_input_tokens, m.knots("root-input-tokens", levels, 1, most));
  MC_TRY(p.output_tokens, m.knots("output-tokens", levels, 0, most));
  MC_TRY(p.small_message_tokens, m.knots("small-message-tokens", levels, -most, most));
  MC_TRY(p.branch_keep_fraction, m.knots("branch-keep-fraction", levels, 0, 1));
  MC_TRY(p.branch_delta_tokens, m.knots("branch-delta-tokens", levels, -most, most));
  if (p.root_input_tokens.low() <= static_cast<double>(p.system_prompt_tokens))
    return m.wrong("root-input-tokens", "not longer than system-prompt-tokens");
  if (p.root_input_tokens.high() > static_cast<double>(p.input_max_tokens))
    return m.wrong("root-input-tokens", "longer than input-max-tokens");
  return {};
}

}  // namespace

Result<Knots> Knots::make(std::vector<double> levels, std::vector<double> values) {
  if (levels.size() < 2 || levels.size() != values.size())
    return fail(Code::kInvalid, "%zu values for %zu quantile levels", values.size(), levels.size());
  if (levels.front() != 0 || levels.back() != 100 ||
      std::adjacent_find(levels.begin(), levels.end(), std::greater_equal<>()) != levels.end())
    return fail(Code::kInvalid, "quantile levels must rise from 0 to 100");
  if (!std::is_sorted(values.begin(), values.end()))
    return fail(Code::kInvalid, "values must not fall from one quantile level to the next");
  Knots k;
  k.levels_ = std::move(levels);
  k.values_ = std::move(values);
  return k;
}

double Knots::at(double quantile) const {
  const double level = std::clamp(quantile, 0.0, 1.0) * 100;
  const auto above = std::upper_bound(levels_.begin(), levels_.end(), level);
  const size_t i =
      std::clamp<size_t>(static_cast<size_t>(above - levels_.begin()), 1, levels_.size() - 1);
  const double part = (level - levels_[i - 1]) / (levels_[i] - levels_[i - 1]);
  const double low = squash(values_[i - 1]), high = squash(values_[i]);
  return stretch(low + part * (high - low));
}

Result<ConversationProfile> parse_conversation(const Json& profile, const std::string& where) {
  if (!profile.is_object()) return fail(Code::kInvalid, "%s: want a JSON object", where.c_str());
  Members m(profile, where);
  ConversationProfile p;
  MC_TRY_(m.text("generator"));
  MC_TRY(p.requests, m.count("requests", 1, kRecordsMax));
  MC_TRY(p.span_s, m.number("span-s", 0.001, 1e8));
  MC_TRY(p.slot_ms, m.count("slot-ms", 0, 3'600'000));
  MC_TRY(p.warm_up_s, m.number("warm-up-s", 0, 1e8));
  MC_TRY(p.system_prompt_tokens, m.count("system-prompt-tokens", 0, kLengthMax));
  MC_TRY(p.input_max_tokens, m.count("input-max-tokens", 1, kLengthMax));
  MC_TRY_(read_sessions(m, p));
  MC_TRY_(read_lengths(m, p));
  MC_TRY_(m.no_others());
  return p;
}

Result<DocumentsProfile> parse_documents(const Json& profile, const std::string& where) {
  if (!profile.is_object()) return fail(Code::kInvalid, "%s: want a JSON object", where.c_str());
  const double most = static_cast<double>(kLengthMax);
  Members m(profile, where);
  DocumentsProfile p;
  MC_TRY_(m.text("generator"));
  MC_TRY(p.requests, m.count("requests", 1, kRecordsMax));
  MC_TRY(p.rate_per_s, m.number("rate-per-s", 1e-6, 1e6));
  MC_TRY(p.short_share, m.number("short-share", 0, 1));
  MC_TRY(p.single_share, m.number("single-share", 0, 1));
  if (p.short_share + p.single_share > 1)
    return m.wrong("single-share", "more than 1 together with short-share");
  MC_TRY(p.short_continue, m.number("short-continue", 0, 0.99));
  MC_TRY(p.small_document_tokens, m.count("small-document-tokens", 0, kLengthMax));
  MC_TRY(p.questions_together_max, m.count("questions-together-max", 1, 1000));
  MC_TRY(p.repeat_share, m.number("repeat-share", 0, 1));
  MC_TRY(const auto levels, m.list("quantile-levels-percent", 0, 100));
  MC_TRY(p.short_input, m.knots("short-input-tokens", levels, 1, most));
  MC_TRY(p.short_output, m.knots("short-output-tokens", levels, 0, most));
  MC_TRY(p.single_input, m.knots("single-input-tokens", levels, 1, most));
  MC_TRY(p.single_output, m.knots("single-output-tokens", levels, 0, most));
  MC_TRY(p.shared_input, m.knots("shared-input-tokens", levels, 1, most));
  MC_TRY(p.shared_output, m.knots("shared-output-tokens", levels, 0, most));
  MC_TRY(p.question_tokens, m.knots("question-tokens", levels, -most, most));
  MC_TRY(p.questions, m.knots("questions", levels, 1, 1000));
  MC_TRY(p.questions_small, m.knots("questions-small-document", levels, 1, 1000));
  MC_TRY_(m.no_others());
  return p;
}

namespace {

Result<ToolClass> parse_tool(const Json& json, const std::string& where,
                             const std::vector<double>& levels) {
  if (!json.is_object()) return fail(Code::kInvalid, "%s: want a JSON object", where.c_str());
  const double most = static_cast<double>(kLengthMax);
  Members m(json, where);
  ToolClass t;
  MC_TRY(t.share, m.number("share", 0, 1));
  MC_TRY(t.shared_tokens, m.count("shared-tokens", 0, kLengthMax));
  MC_TRY(t.tail_tokens, m.knots("tail-tokens", levels, 1, most));
  MC_TRY(t.output_tokens, m.knots("output-tokens", levels, 0, most));
  MC_TRY_(m.no_others());
  return t;
}

}  // namespace

Result<ToolAgentProfile> parse_tool_agent(const Json& profile, const std::string& where) {
  if (!profile.is_object()) return fail(Code::kInvalid, "%s: want a JSON object", where.c_str());
  Members m(profile, where);
  ToolAgentProfile p;
  MC_TRY_(m.text("generator"));
  MC_TRY(p.requests, m.count("requests", 1, kRecordsMax));
  MC_TRY(p.span_s, m.number("span-s", 0.001, 1e8));
  MC_TRY(p.chat_requests, m.count("chat-requests", 0, kRecordsMax));
  if (p.chat_requests > p.requests) return m.wrong("chat-requests", "more than requests");
  MC_TRY(p.chat_output_min, m.count("chat-output-min", 0, kLengthMax));
  MC_TRY(const Json* chat, m.member("chat", false));
  MC_TRY(p.chat, parse_conversation(*chat, where + ": chat"));
  MC_TRY(const auto levels, m.list("quantile-levels-percent", 0, 100));
  MC_TRY(const Json* tools, m.member("tools", true));
  double shares = 0;
  for (const Json& tool : *tools) {
    MC_TRY(ToolClass parsed,
           parse_tool(tool, where + strf(": tools[%zu]", p.tools.size()), levels));
    shares += parsed.share;
    p.tools.push_back(std::move(parsed));
  }
  if (std::abs(shares - 1) > 1e-6) return m.wrong("tools", "their shares must sum to 1");
  MC_TRY_(m.no_others());
  return p;
}

}  // namespace mc::trace
