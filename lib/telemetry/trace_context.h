// A request's place in a distributed trace: the trace, the span above, and whether it is recorded.
// Clients send it in the headers of W3C Trace Context, processes of mc in 24 bytes.
//
// Thread: values; any thread. Pure.
// Source: https://www.w3.org/TR/trace-context/ (level 1), docs/wire.md.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mc::telemetry {

using TraceId = std::array<uint8_t, 16>;  // all zero: none
using SpanId = std::array<uint8_t, 8>;

struct TraceContext {
  TraceId trace{};
  SpanId span{};
  bool sampled = false;  // its spans are recorded
  std::string state;     // the header tracestate; "": none

  bool valid() const { return trace != TraceId{} && span != SpanId{}; }
};

// Reads the headers. Nothing where traceparent is absent or invalid; then tracestate does not
// count. An invalid tracestate is dropped alone.
std::optional<TraceContext> read_traceparent(std::string_view traceparent,
                                             std::string_view tracestate = {});
std::string traceparent(const TraceContext& context);

// What goes along with a call to another process: the ids of the trace and of the span above; ""
// where nothing is recorded. Reading: nothing for any other length, or for ids that are zero.
std::string to_wire(const TraceContext& context);
std::optional<TraceContext> from_wire(std::string_view bytes);

std::string hex(const uint8_t* bytes, size_t n);  // in lower case

}  // namespace mc::telemetry
