// A span, a step of a request with its begin and end, and its form in OTLP's JSON.
//
// Thread: values; any thread. Pure.
// Source: https://opentelemetry.io/docs/specs/otlp/ (JSON encoding), opentelemetry-proto 1.x.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/time.h"
#include "telemetry/trace_context.h"

namespace mc::telemetry {

using Attribute = std::pair<std::string, std::variant<std::string, int64_t, double, bool>>;
using Attributes = std::vector<Attribute>;

enum class SpanKind : uint8_t { kInternal = 1, kServer = 2, kClient = 3 };  // OTLP's numbers

struct Span {
  TraceContext context;  // its own id in `span`
  SpanId parent{};       // zero: none
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  Time begin{}, end{};
  Attributes attributes;
  std::string error;  // "": it went well
};

// An ExportTraceServiceRequest. `wall_ns`: the wall clock less the steady one, in nanoseconds.
std::string otlp_json(const std::vector<Span>& spans, const Attributes& resource, int64_t wall_ns);

}  // namespace mc::telemetry
