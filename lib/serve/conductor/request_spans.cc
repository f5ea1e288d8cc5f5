#include "serve/conductor/request_spans.h"

#include <utility>

namespace mc::serve {

void end_request_span(telemetry::OpenSpan& span, const GenerateRequest& ask, const Progress& p,
                      Time arrived, Time now, const SpanOutcome& outcome) {
  if (!span) return;
  if (p.output_tokens > 0 && p.ttft_ms > 0)
    span.step("answer", arrived + from_seconds(p.ttft_ms / 1e3), now,
              {{"mc.output_tokens", int64_t{p.output_tokens}}});
  telemetry::Attributes a = {{"mc.request", ask.id},
                             {"mc.status", int64_t{outcome.status}},
                             {"mc.reason", outcome.reason},
                             {"mc.prefill", p.prefill},
                             {"mc.decode", p.decode},
                             {"mc.prompt_tokens", static_cast<int64_t>(ask.tokens())},
                             {"mc.cached_tokens", int64_t{p.cached_tokens.value_or(0)}},
                             {"mc.output_tokens", int64_t{p.output_tokens}},
                             {"mc.predicted_ttft_ms", p.predicted_ttft_ms},
                             {"mc.ttft_ms", p.ttft_ms}};
  span.end("request", now, std::move(a), outcome.error);
}

void end_engine_span(telemetry::OpenSpan& span, const std::string& engine, int status,
                     const std::string& error, Time now) {
  if (!span) return;
  const bool failed = error.empty() && status >= 400;
  span.end("engine", now, {{"mc.node", engine}, {"http.response.status_code", int64_t{status}}},
           failed ? "status " + std::to_string(status) : error, telemetry::SpanKind::kClient);
}

void pass_trace(http::Headers& headers, const telemetry::TraceContext& context) {
  if (!context.valid()) return;
  std::erase_if(headers,
                [](const auto& h) { return h.first == "traceparent" || h.first == "tracestate"; });
  headers.push_back({"traceparent", telemetry::traceparent(context)});
  if (!context.state.empty()) headers.push_back({"tracestate", context.state});
}

}  // namespace mc::serve
