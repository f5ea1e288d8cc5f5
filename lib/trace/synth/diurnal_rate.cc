#include "trace/synth/diurnal_rate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/units.h"

namespace mc::trace {
namespace {

// Relative requests an hour, shaped as the paper describes a cluster's day: long documents in
// working hours with a dip at noon, short chats mostly in the evening.
constexpr DiurnalRate kDay = {6,  4,  3,  3,  3,  5,  10, 25, 60, 90, 100, 95,
                              70, 75, 95, 98, 90, 75, 50, 38, 30, 24, 16,  10};
constexpr DiurnalRate kEvening = {40, 24, 14, 9,  8,  8,  12, 18, 24, 28,  30, 34,
                                  38, 34, 32, 32, 36, 46, 64, 84, 97, 100, 88, 64};
constexpr size_t kStepsAnHour = 60;

double rate_at(const DiurnalRate& rates, double hour) {  // hour: from 0 to 24
  const double at = hour - 0.5 + 24;
  const auto from = static_cast<size_t>(std::floor(at));
  const double share = at - std::floor(at);
  return (1 - share) * rates[from % 24] + share * rates[(from + 1) % 24];
}

}  // namespace

Result<DiurnalRate> parse_diurnal_rate(std::string_view text) {
  if (text == "day") return kDay;
  if (text == "evening") return kEvening;
  DiurnalRate out{};
  out.fill(1);
  if (text == "flat") return out;
  size_t n = 0;
  for (size_t at = 0; at <= text.size(); ++n) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const auto value = parse_number(text.substr(at, comma - at));
    if (!value || !std::isfinite(*value) || *value < 0 || *value > 1e9)
      return fail(Code::kInvalid, "--tide '%s': want day, evening, flat, or 24 numbers from 0",
                  escape(std::string(text)).c_str());
    if (n < out.size()) out[n] = *value;
    at = comma + 1;
  }
  if (n != out.size())
    return fail(Code::kInvalid, "--tide has %zu numbers: want 24, one for each hour", n);
  return out;
}

Result<std::vector<TraceRequest>> over_a_day(std::vector<TraceRequest> records,
                                             const DiurnalRate& rates) {
  if (records.empty()) return records;
  std::vector<double> passed = {0};  // of the day's requests, minute by minute
  for (size_t i = 0; i < 24 * kStepsAnHour; ++i)
    passed.push_back(passed.back() + rate_at(rates, (static_cast<double>(i) + 0.5) / kStepsAnHour));
  if (!(passed.back() > 0))
    return fail(Code::kInvalid,
                "--tide: every hour is 0, so no request has a time; set at least one above 0");
  const uint64_t first = records.front().timestamp_ms;
  const auto span = static_cast<double>(records.back().timestamp_ms - first + 1);
  size_t step = 0;
  for (TraceRequest& r : records) {
    const double share = static_cast<double>(r.timestamp_ms - first) / span * passed.back();
    while (passed[step + 1] <= share) ++step;
    const double within = (share - passed[step]) / (passed[step + 1] - passed[step]);
    const double minutes = static_cast<double>(step) + within;
    r.timestamp_ms = static_cast<uint64_t>(minutes * (60.0 / kStepsAnHour) * 60'000);
  }
  return records;
}

std::vector<TraceRequest> together(std::vector<TraceRequest> a,
                                   const std::vector<TraceRequest>& b) {
  uint64_t next = 0;
  for (const TraceRequest& r : a)
    for (const uint64_t id : r.hash_ids) next = std::max(next, id + 1);
  for (TraceRequest r : b) {
    for (uint64_t& id : r.hash_ids) id += next;
    a.push_back(std::move(r));
  }
  std::stable_sort(a.begin(), a.end(), [](const TraceRequest& x, const TraceRequest& y) {
    return x.timestamp_ms < y.timestamp_ms;
  });
  return a;
}

}  // namespace mc::trace
