#include "trace/fit/fit.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/json.h"
#include "trace/analyze/stats.h"
#include "trace/fit/fit_documents.h"
#include "trace/fit/fit_tools.h"
#include "trace/fit/quantiles.h"
#include "trace/synth/synth.h"

namespace mc::trace {
namespace {

constexpr double kLargeTokens = 500;  // a message above it is a file or a search result
constexpr size_t kTurnsApart = 3;     // turns with a chance of a large message of their own
constexpr size_t kLateRootsMin = 200;
constexpr double kWeightMax = 10;
constexpr uint64_t kTrialRequests = 12'000;
constexpr int kRounds = 12, kSeeds = 3;

struct Parts {          // what was read off the trace
  uint64_t common = 0;  // leading blocks that all prompts have
  std::vector<double> root_input, late_root_input, output, small, large_log, keep, delta;
  LogNormal gap_s;
  double gap_least_s = 0;
  uint64_t continued = 0, branched = 0, resent = 0;
  uint64_t messages[kTurnsApart] = {}, large[kTurnsApart] = {};
  std::vector<uint64_t> reached;  // sessions of the first half that had so many requests, from 1
};

class SessionReader {
 public:
  SessionReader(const Trace& trace, uint64_t common) : trace_(trace) { parts_.common = common; }

  Parts read() {
    const auto& all = trace_.records;
    span_ms_ = all.back().timestamp_ms - all.front().timestamp_ms;
    turn_.resize(all.size());
    early_.resize(all.size());
    for (size_t i = 0; i < all.size(); ++i) request(i);
    gaps();
    return std::move(parts_);
  }

 private:
  void request(size_t i) {
    const TraceRequest& r = trace_.records[i];
    const uint64_t full = full_blocks(r.input_length, kBlockTokens);
    uint64_t known = 0;
    while (known < r.hash_ids.size() && last_.contains(r.hash_ids[known])) ++known;
    parts_.output.push_back(static_cast<double>(r.output_length));
    if (known <= parts_.common)
      root(i);
    else
      next(i, last_.at(r.hash_ids[known - 1]), std::min(known, full));
    for (const uint64_t id : r.hash_ids) last_[id] = i;
  }

  void root(size_t i) {
    const TraceRequest& r = trace_.records[i];
    const uint64_t at = r.timestamp_ms - trace_.records[0].timestamp_ms;
    const auto input = static_cast<double>(r.input_length);
    parts_.root_input.push_back(input);
    if (at * 2 > span_ms_) parts_.late_root_input.push_back(input);
    turn_[i] = 0;
    early_[i] = at * 2 <= span_ms_;
    count(i);
  }

  void next(size_t i, size_t parent, uint64_t kept) {
    const TraceRequest &r = trace_.records[i], &p = trace_.records[parent];
    turn_[i] = turn_[parent] + 1;
    early_[i] = early_[parent];
    count(i);
    const double gap = static_cast<double>(r.timestamp_ms - p.timestamp_ms) / 1000;
    gaps_.push_back(gap);
    const uint64_t before = full_blocks(p.input_length, kBlockTokens);
    const double added = static_cast<double>(r.input_length) - static_cast<double>(p.input_length) -
                         static_cast<double>(p.output_length);
    if (r.hash_ids == p.hash_ids && r.input_length == p.input_length) {
      ++parts_.resent;
    } else if (kept >= before) {
      ++parts_.continued;
      message(std::min<size_t>(turn_[i], kTurnsApart) - 1, added);
    } else {
      ++parts_.branched;
      parts_.keep.push_back(static_cast<double>(kept) / static_cast<double>(before));
      parts_.delta.push_back(added);
    }
  }

  // A gap is seen only when both of its ends are in the window, so long gaps get a higher weight.
  void gaps() {
    if (gaps_.empty()) return;
    std::sort(gaps_.begin(), gaps_.end());
    parts_.gap_least_s = gaps_[gaps_.size() / 100];
    const double span_s = static_cast<double>(span_ms_) / 1000;
    double weights = 0, sum = 0, squares = 0;
    for (const double gap : gaps_) {
      if (gap <= 0) continue;
      const double weight = std::min(span_s / std::max(span_s - gap, 1e-9), kWeightMax);
      weights += weight;
      sum += weight * std::log(gap);
      squares += weight * std::log(gap) * std::log(gap);
    }
    if (weights == 0) return;
    const double mean = sum / weights;
    parts_.gap_s = {mean, std::sqrt(std::max(squares / weights - mean * mean, 0.0))};
  }

  void message(size_t turn, double tokens) {
    ++parts_.messages[turn];
    if (tokens > kLargeTokens) {
      ++parts_.large[turn];
      parts_.large_log.push_back(std::log(tokens));
    } else {
      parts_.small.push_back(tokens);
    }
  }

  void count(size_t i) {
    if (!early_[i]) return;
    if (parts_.reached.size() <= turn_[i]) parts_.reached.resize(turn_[i] + 1);
    ++parts_.reached[turn_[i]];
  }

  const Trace& trace_;
  uint64_t span_ms_ = 0;
  Parts parts_;
  std::unordered_map<uint64_t, size_t> last_;  // who had the block last
  std::vector<uint64_t> turn_;
  std::vector<bool> early_;
  std::vector<double> gaps_;
};

double span_s(const std::vector<TraceRequest>& records) {
  return static_cast<double>(records.back().timestamp_ms - records.front().timestamp_ms) / 1000;
}

// The grid of the times, within some milliseconds; 0 when there is none.
uint64_t slot_of(const std::vector<TraceRequest>& records) {
  std::vector<uint64_t> stamps, gaps;
  for (const TraceRequest& r : records)
    if (stamps.empty() || r.timestamp_ms != stamps.back()) stamps.push_back(r.timestamp_ms);
  for (size_t i = 1; i < stamps.size(); ++i) gaps.push_back(stamps[i] - stamps[i - 1]);
  if (gaps.size() < 20) return 0;
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2),
                   gaps.end());
  const uint64_t slot = (gaps[gaps.size() / 2] + 5) / 10 * 10;
  if (slot < 100) return 0;
  uint64_t on = 0;
  for (const uint64_t t : stamps) {
    const uint64_t off = (t - stamps[0]) % slot;
    on += std::min(off, slot - off) <= 5;
  }
  return on * 10 >= stamps.size() * 9 && slot <= 3'600'000 ? slot : 0;
}

// How much higher the rate is at the end than on average, by least squares over tenths.
double trend_of(const std::vector<TraceRequest>& records) {
  constexpr size_t kTenths = 10;
  const double first = static_cast<double>(records.front().timestamp_ms);
  const double span = static_cast<double>(records.back().timestamp_ms) - first;
  double counts[kTenths] = {};
  for (const TraceRequest& r : records) {
    const double part = (static_cast<double>(r.timestamp_ms) - first) / span;
    ++counts[std::min(static_cast<size_t>(part * kTenths), kTenths - 1)];
  }
  double slope = 0, squares = 0;
  for (size_t i = 0; i < kTenths; ++i) {
    const double x = (static_cast<double>(i) + 0.5) / kTenths * 2 - 1;  // -1 to 1
    slope += x * counts[i];
    squares += x * x;
  }
  return std::clamp(slope / squares / (static_cast<double>(records.size()) / kTenths), 0.0, 0.9);
}

Json lognormal(const std::vector<double>& logs, double mean, double deviation) {
  const Distribution d(logs);
  return d.n() < 2 ? Json{mean, deviation} : Json{d.mean(), d.deviation()};
}

// The chance of another turn: its mean, and a + b of the beta distribution it is drawn from. Over
// sessions, a chance m of a second request and q > m of a third after it mean (1 - q) / (q - m).
struct Again {
  double mean, sum;
  Json beta() const { return {mean * sum, (1 - mean) * sum}; }
};
Again again_of(const Parts& p) {
  const auto part = [&](size_t i) {
    if (p.reached.size() <= i || p.reached[i - 1] == 0) return 0.0;
    return static_cast<double>(p.reached[i]) / static_cast<double>(p.reached[i - 1]);
  };
  const double m = std::clamp(part(1), 0.01, 0.95), q = part(2);
  const double sum = q > m + 0.01 ? (1 - q) / (q - m) : 50;
  return {m, std::clamp(sum, 2.0, 50.0)};
}

Json first_guess(const Trace& t, const Parts& p) {
  const auto& all = t.records;
  const double seconds = span_s(all);
  const double gap_s = std::exp(p.gap_s.mu + p.gap_s.sigma * p.gap_s.sigma / 2);
  const double least = *std::min_element(p.root_input.begin(), p.root_input.end());
  double most = 1;
  for (const TraceRequest& r : all) most = std::max(most, static_cast<double>(r.input_length));
  const auto later = static_cast<double>(p.continued + p.branched + p.resent);
  const auto share = [&](uint64_t n) { return later > 0 ? static_cast<double>(n) / later : 0; };
  Json large = Json::array();
  for (size_t i = 0; i < kTurnsApart; ++i)
    large.push_back(p.messages[i]
                        ? static_cast<double>(p.large[i]) / static_cast<double>(p.messages[i])
                    : large.empty() ? 0.0
                                    : large.back().get<double>());
  return {
      {"generator", "conversation"},
      {"requests", all.size()},
      {"span-s", seconds},
      {"slot-ms", slot_of(all)},
      {"warm-up-s", std::ceil(std::min(20 * gap_s, 10 * seconds))},
      {"system-prompt-tokens", std::min(static_cast<double>(p.common * kBlockTokens), least - 1)},
      {"input-max-tokens", most},
      {"sessions-per-request", 1.0},
      {"rate-trend", trend_of(all)},
      {"continue-beta", again_of(p).beta()},
      {"continue-halved-at-tokens", 1e6},
      {"turn-gap-lognormal-s", {p.gap_s.mu, p.gap_s.sigma}},
      {"turn-gap-min-s", p.gap_least_s},
      {"branch-share", share(p.branched)},
      {"resend-share", share(p.resent)},
      {"large-message-probability", large},
      {"large-message-above-tokens", kLargeTokens},
      {"large-message-lognormal-tokens", lognormal(p.large_log, std::log(kLargeTokens), 0)},
      {"quantile-levels-percent", knot_levels()},
      {"root-input-tokens", knots(p.root_input, 1, 1)},
      {"output-tokens", knots(p.output, 0, 1)},
      {"small-message-tokens", knots(p.small, 0, 1)},
      {"branch-keep-fraction", knots(p.keep, 1, 1e-4)},
      {"branch-delta-tokens", knots(p.delta, 0, 1)}};
}

double off(double got, double want) { return std::abs(got - want) / std::max(want, 0.01); }

double step(double value, double got, double want, double power, double low, double high) {
  const double by = std::pow(std::max(want, 1e-3) / std::max(got, 1e-3), power);
  return std::clamp(value * std::clamp(by, 0.5, 2.0), low, high);
}

double error_of(const FitShape& got, const FitShape& want) {
  return off(got.new_share, want.new_share) + off(got.mean_input, want.mean_input) +
         off(got.hit_rate, want.hit_rate);
}

// Adjusts the hidden values step by step; keeps the best of all steps in `best`.
Result<> search(const Trace& trace, const Parts& parts, Json profile, Fitted& best) {
  const FitShape& want = best.want;
  Again again = again_of(parts);
  double halved = 1e6;
  for (int round = 0; round < kRounds; ++round) {
    profile["continue-beta"] = again.beta();
    profile["continue-halved-at-tokens"] = std::round(halved);
    MC_TRY(const auto parsed, parse_conversation(profile, trace.name));
    profile["sessions-per-request"] = std::clamp(1 / mean_session_requests(parsed, 1), 0.001, 1.0);
    MC_TRY(const FitShape got,
           fit_trial(profile, std::min<uint64_t>(trace.records.size(), kTrialRequests)));
    if (best.profile.empty() || error_of(got, want) < error_of(best.got, want)) {
      best.profile = dump_json(profile, 2) + "\n";
      best.got = got;
    }
    again.mean = step(again.mean, 1 - got.new_share, 1 - want.new_share, 1, 0.001, 0.98);
    again.sum = step(again.sum, want.hit_rate, got.hit_rate, 3, 2, 500);
    halved = step(halved, got.mean_input, want.mean_input, 4, 1e4, 1e9);
  }
  return {};
}

// A conversation profile.
Result<Fitted> fit_conversation(const Trace& trace) {
  Fitted best;
  best.want = fit_shape(trace);
  const Parts parts = SessionReader(trace, describe(trace).shared_by_all).read();
  const Json guess = first_guess(trace, parts);
  // Early in the window a session's first visible prompt may not be its first. Later there are
  // fewer samples.
  for (const auto* roots : {&parts.root_input, &parts.late_root_input}) {
    if (roots != &parts.root_input && roots->size() < kLateRootsMin) continue;
    Json profile = guess;
    profile["root-input-tokens"] = knots(*roots, 1, 1);
    MC_TRY_(search(trace, parts, std::move(profile), best));
  }
  return best;
}

bool has_rate(const Trace& trace) {
  return trace.records.size() >= kFitRequestsMin && span_s(trace.records) > 0;
}

Result<Fitted> fit_tool_agent(const Trace& trace, const ToolSplit& split) {
  const auto& all = trace.records;
  MC_TRY(const Fitted chat, fit_conversation(split.rest));
  MC_TRY(const Json chat_profile, parse_json(chat.profile));
  Json tools = Json::array();
  for (const ToolCalls& t : split.tools)
    tools.push_back({{"share", t.share},
                     {"shared-tokens", t.shared_tokens},
                     {"tail-tokens", knots(t.tail_tokens, 1, 1)},
                     {"output-tokens", knots(t.output_tokens, 0, 1)}});
  const Json profile{{"generator", "tool-agent"},
                     {"requests", all.size()},
                     {"span-s", span_s(all)},
                     {"chat-requests", split.rest.records.size()},
                     {"chat-output-min", 0},
                     {"quantile-levels-percent", knot_levels()},
                     {"tools", tools},
                     {"chat", chat_profile}};
  Fitted out;
  out.want = fit_shape(trace);
  MC_TRY(out.got, fit_trial(profile, std::min<uint64_t>(all.size(), kTrialRequests)));
  out.profile = dump_json(profile, 2) + "\n";
  return out;
}

}  // namespace

FitShape fit_shape(const Trace& trace) {
  const TraceStats s = describe(trace);
  const HitCurve curve = lru_curve(trace.records, trace.block_tokens, {});
  return {static_cast<double>(s.roots) / static_cast<double>(s.requests), s.input.mean(),
          curve.token_rate(curve.infinite)};
}

Result<FitShape> fit_trial(const Json& profile, uint64_t requests) {
  FitShape mean;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Trace made;
    MC_TRY(made.records, synthesize(profile, "fit", {.seed = seed, .requests = requests}));
    const FitShape s = fit_shape(made);
    mean.new_share += s.new_share / kSeeds;
    mean.mean_input += s.mean_input / kSeeds;
    mean.hit_rate += s.hit_rate / kSeeds;
  }
  return mean;
}

Result<Fitted> fit_profile(const Trace& trace) {
  const auto& all = trace.records;
  if (all.size() < kFitRequestsMin)
    return fail(Code::kInvalid, "%s: %zu requests: a profile needs %llu at least",
                trace.name.c_str(), all.size(), static_cast<unsigned long long>(kFitRequestsMin));
  if (trace.block_tokens != kBlockTokens)
    return fail(Code::kInvalid, "%s: blocks of %llu tokens: profiles are of 512",
                trace.name.c_str(), static_cast<unsigned long long>(trace.block_tokens));
  if (all.front().timestamp_ms == all.back().timestamp_ms)
    return fail(Code::kInvalid, "%s: all requests at one time: there is no rate to fit",
                trace.name.c_str());
  const ToolSplit split = split_tools(trace);
  if (const auto documents = split_documents(trace);
      documents.holds && split_documents(split.rest).holds)
    return fit_documents(trace, documents);
  return split.tools.empty() || !has_rate(split.rest) ? fit_conversation(trace)
                                                      : fit_tool_agent(trace, split);
}

}  // namespace mc::trace
