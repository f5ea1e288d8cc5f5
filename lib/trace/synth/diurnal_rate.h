// Spreads a trace over 24 hours, at a rate that varies by hour.
// It also merges traces: a cluster may compute documents by day and chats in the evening.
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

// Each hour's share of a day's requests, in any unit. Between the middles of two hours the rate
// changes linearly.
using DiurnalRate = std::array<double, 24>;
inline constexpr uint64_t kDayMs = 86'400'000;

// "day" (working hours), "evening", "flat", or 24 numbers from 0 with commas. Errors: kInvalid.
Result<DiurnalRate> parse_diurnal_rate(std::string_view text);

// Moves the requests, in their order, into one day from midnight with these rates: a request at a
// share of the trace's time arrives when that share of the day's requests has come. Times between
// the requests of a session stretch and shrink with all others. Errors: kInvalid when all rates
// are 0.
Result<std::vector<TraceRequest>> over_a_day(std::vector<TraceRequest> records,
                                             const DiurnalRate& rates);

// Both traces by time; their block ids are made disjoint.
std::vector<TraceRequest> together(std::vector<TraceRequest> a, const std::vector<TraceRequest>& b);

}  // namespace mc::trace
