#include "telemetry/span.h"

#include <algorithm>

#include "base/json.h"

namespace mc::telemetry {
namespace {

constexpr int kStatusError = 2;

// 64-bit integers are strings, as JSON's numbers may not hold them.
Json value_json(const Attribute& a) {
  if (const auto* text = std::get_if<std::string>(&a.second)) return {{"stringValue", *text}};
  if (const auto* n = std::get_if<int64_t>(&a.second)) return {{"intValue", std::to_string(*n)}};
  if (const auto* d = std::get_if<double>(&a.second)) return {{"doubleValue", *d}};
  return {{"boolValue", std::get<bool>(a.second)}};
}

Json attributes_json(const Attributes& attributes) {
  Json all = Json::array();
  for (const Attribute& a : attributes) all.push_back({{"key", a.first}, {"value", value_json(a)}});
  return all;
}

std::string unix_nanoseconds(Time t, int64_t wall_ns) {
  return std::to_string(t.time_since_epoch().count() + wall_ns);
}

Json span_json(const Span& s, int64_t wall_ns) {
  const TraceContext& c = s.context;
  Json j = {{"traceId", hex(c.trace.data(), c.trace.size())},
            {"spanId", hex(c.span.data(), c.span.size())}};
  if (!c.state.empty()) j["traceState"] = c.state;
  if (s.parent != SpanId{}) j["parentSpanId"] = hex(s.parent.data(), s.parent.size());
  j["flags"] = c.sampled ? 1 : 0;
  j["name"] = s.name;
  j["kind"] = static_cast<int>(s.kind);
  j["startTimeUnixNano"] = unix_nanoseconds(s.begin, wall_ns);
  j["endTimeUnixNano"] = unix_nanoseconds(std::max(s.begin, s.end), wall_ns);
  j["attributes"] = attributes_json(s.attributes);
  if (!s.error.empty()) j["status"] = {{"code", kStatusError}, {"message", s.error}};
  return j;
}

}  // namespace

std::string otlp_json(const std::vector<Span>& spans, const Attributes& resource, int64_t wall_ns) {
  Json list = Json::array();
  for (const Span& s : spans) list.push_back(span_json(s, wall_ns));
  Json scope = {{"scope", {{"name", "mc"}}}, {"spans", std::move(list)}};
  Json of_resource = {{"resource", {{"attributes", attributes_json(resource)}}},
                      {"scopeSpans", Json::array({std::move(scope)})}};
  return dump_json({{"resourceSpans", Json::array({std::move(of_resource)})}});
}

}  // namespace mc::telemetry
