#include "trace/play/player.h"

#include <cmath>

#include "base/random.h"
#include "base/units.h"

namespace mc::trace {
namespace {

using ull = unsigned long long;

// Positive and finite, so that times stay in the range of a Duration.
Result<> check_positive(const char* what, double v) {
  if (std::isfinite(v) && v > 0) return {};
  return fail(Code::kInvalid, "%s is %s: want a number above 0", what, number_text(v).c_str());
}

Result<> check_cv(double v) {
  if (v >= 1e-6 && v <= 1e6) return {};
  return fail(Code::kInvalid,
              "the CV of gamma:CV is %s: want a number from 1e-06 to 1e+06; for even gaps, uniform",
              number_text(v).c_str());
}

Result<> check(const PlayOptions& o) {
  if (o.arrival == Arrival::kTrace) {
    if (o.speed != 0 && !(std::isfinite(o.speed) && o.speed > 0))
      return fail(Code::kInvalid, "--speed is %s: want a number above 0, or 0 for all at once",
                  number_text(o.speed).c_str());
  } else {
    MC_TRY_(check_positive("--qps", o.qps));
    if (o.speed != 1)
      return fail(Code::kInvalid,
                  "--speed %s and --qps %s both set when requests come: leave one out",
                  number_text(o.speed).c_str(), number_text(o.qps).c_str());
  }
  if (o.arrival == Arrival::kGamma) MC_TRY_(check_cv(o.cv));
  if (o.window_from_s < 0 || (o.window_to_s && *o.window_to_s <= o.window_from_s))
    return fail(Code::kInvalid, "--window %s:%s is empty", number_text(o.window_from_s).c_str(),
                o.window_to_s ? number_text(*o.window_to_s).c_str() : "");
  return {};
}

double gap_seconds(const PlayOptions& o, Random& random) {
  const double mean = 1 / o.qps;
  switch (o.arrival) {
    case Arrival::kTrace: break;
    case Arrival::kPoisson: return random.exponential(mean);
    case Arrival::kUniform: return mean;
    case Arrival::kGamma: {
      const double shape = 1 / (o.cv * o.cv);
      return random.gamma(shape, mean / shape);
    }
  }
  return 0;
}

}  // namespace

Result<> parse_arrival(std::string_view text, PlayOptions& options) {
  if (text == "trace") {
    options.arrival = Arrival::kTrace;
  } else if (text == "poisson") {
    options.arrival = Arrival::kPoisson;
  } else if (text == "uniform") {
    options.arrival = Arrival::kUniform;
  } else if (text.starts_with("gamma:")) {
    options.arrival = Arrival::kGamma;
    MC_TRY(options.cv, parse_number(text.substr(6)));
    MC_TRY_(check_cv(options.cv));
  } else {
    return fail(Code::kInvalid, "arrival '%s': want trace, poisson, uniform or gamma:CV",
                escape(text).c_str());
  }
  return {};
}

Result<> parse_window(std::string_view text, PlayOptions& options) {
  const size_t colon = text.find(':');
  const auto from = colon == 0 ? Result<double>(0) : parse_number(text.substr(0, colon));
  const auto to =
      colon + 1 < text.size() ? parse_number(text.substr(colon + 1)) : Result<double>(0);
  if (colon == std::string_view::npos || !from || !to)
    return fail(Code::kInvalid, "window '%s': want A:B in seconds of trace time",
                escape(text).c_str());
  options.window_from_s = *from;
  options.window_to_s.reset();
  if (colon + 1 < text.size()) options.window_to_s = *to;
  if (options.window_from_s < 0 ||
      (options.window_to_s && *options.window_to_s <= options.window_from_s))
    return fail(Code::kInvalid, "window '%s' is empty", escape(text).c_str());
  return {};
}

Result<std::vector<Arrived>> schedule(const Trace& trace, const PlayOptions& asked) {
  PlayOptions options = asked;
  if (options.qps != 0 && options.arrival == Arrival::kTrace) options.arrival = Arrival::kPoisson;
  MC_TRY_(check(options));
  Random random(options.seed);
  std::vector<Arrived> out;
  double next_s = 0;
  for (size_t i = 0; i < trace.records.size(); ++i) {
    const double at_s = static_cast<double>(trace.records[i].timestamp_ms) / 1000;
    if (at_s < options.window_from_s) continue;
    if (options.window_to_s && at_s >= *options.window_to_s) break;
    if (options.limit && out.size() >= options.limit) break;
    if (options.arrival != Arrival::kTrace)
      next_s += out.empty() ? 0 : gap_seconds(options, random);
    else
      next_s = options.speed == 0 ? 0 : (at_s - options.window_from_s) / options.speed;
    if (next_s > 1e9)
      return fail(Code::kInvalid, "request %zu would be due after %s s: raise --speed or --qps", i,
                  number_text(next_s).c_str());
    out.push_back({i, from_seconds(next_s), &trace.records[i]});
  }
  if (out.empty())
    return fail(Code::kInvalid, "%s has no request in the window %s:%s s", trace.name.c_str(),
                number_text(options.window_from_s).c_str(),
                options.window_to_s ? number_text(*options.window_to_s).c_str() : "");
  return out;
}

Prompts::Prompts(const PromptOptions& options) : options_(options) {
  // Digits of 2^64 - 1 in base vocab: enough to tell any two ids apart.
  for (uint64_t left = UINT64_MAX; left; left /= options.vocab) ++digits_;
}

Result<Prompts> Prompts::make(const PromptOptions& o) {
  if (o.vocab < 2 || o.vocab > INT32_MAX)
    return fail(Code::kInvalid, "a vocabulary of %llu tokens: want 2 to %d",
                static_cast<ull>(o.vocab), INT32_MAX);
  Prompts prompts(o);
  if (o.block_tokens < prompts.digits_)
    return fail(
        Code::kInvalid,
        "a block of %llu tokens of a vocabulary of %llu cannot encode a 64-bit id: raise either",
        static_cast<ull>(o.block_tokens), static_cast<ull>(o.vocab));
  return prompts;
}

int32_t Prompts::token(uint64_t hash_id, uint64_t position) const {
  // mix64 is a permutation of the 64-bit numbers, so `spelled` is as distinct as the id. It is
  // mixed so that the first token already differs between neighbours.
  const uint64_t spelled = mix64(hash_id ^ mix64(options_.seed));
  if (position >= digits_) return static_cast<int32_t>(mix64(spelled + position) % options_.vocab);
  uint64_t left = spelled;
  for (uint64_t i = 0; i < position; ++i) left /= options_.vocab;
  return static_cast<int32_t>(left % options_.vocab);
}

void Prompts::append(uint64_t hash_id, uint64_t n, std::vector<int32_t>& out) const {
  for (uint64_t i = 0; i < n; ++i) out.push_back(token(hash_id, i));
}

std::vector<int32_t> Prompts::tokens(const TraceRequest& record) const {
  std::vector<int32_t> out;
  out.reserve(record.input_length);
  for (size_t i = 0; i < record.hash_ids.size() && out.size() < record.input_length; ++i)
    append(record.hash_ids[i], std::min(options_.block_tokens, record.input_length - out.size()),
           out);
  MC_CHECK(out.size() == record.input_length);  // the reader refuses records that are not so
  return out;
}

}  // namespace mc::trace
