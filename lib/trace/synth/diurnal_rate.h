// A day's tide: traces whose rate rises and falls over 24 hours, and mixtures of them, as a cluster
// sees that computes documents by day and chats in the evening.
//
// Thread: values; any thread. Pure: no clock, no I/O.
// Source: Mooncake, section 5.1 and Figure 8.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "trace/records/records.h"

namespace mc::trace {

// How much of a day's requests each hour has, in any unit; between the middles of two hours the
// rate changes evenly.
using DiurnalRate = std::array<double, 24>;
inline constexpr uint64_t kDayMs = 86'400'000;

// "day" (working hours), "evening", "flat", or 24 numbers from 0 with commas. Errors: kInvalid.
Result<DiurnalRate> parse_diurnal_rate(std::string_view text);

// The same requests in the same order over one day from midnight, as dense as the tide says: what
// share of the trace's time has passed is the share of the day's requests that came. Times between
// the requests of a session stretch and shrink with all others. Errors: kInvalid for an empty day.
Result<std::vector<TraceRequest>> over_a_day(std::vector<TraceRequest> records,
                                             const DiurnalRate& tide);

// Both by time; they share no blocks.
std::vector<TraceRequest> together(std::vector<TraceRequest> a, const std::vector<TraceRequest>& b);

}  // namespace mc::trace
