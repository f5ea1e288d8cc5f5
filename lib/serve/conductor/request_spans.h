// The spans of a request in the conductor: what they are called and say.
//
// Thread: the loop's.
#pragma once
#include <string>

#include "http/server.h"
#include "serve/protocol/generate.h"
#include "telemetry/tracer.h"

namespace mc::serve {

struct SpanOutcome {
  int status = 200;
  std::string reason;  // "stop", "ttft_slo", ...
  std::string error;   // "": it went well
};

// Ends the span of a request, and says how long its answer took from the first token on.
void end_request_span(telemetry::OpenSpan& span, const GenerateRequest& ask, const Progress& p,
                      Time arrived, Time now, const SpanOutcome& outcome);
// Ends the span of what an external engine was asked. `status`: 0 where no answer came.
void end_engine_span(telemetry::OpenSpan& span, const std::string& engine, int status,
                     const std::string& error, Time now);
// Puts the trace into the headers for an external engine, in place of the client's own. Those stay
// where `context` is not valid: no trace is recorded here.
void pass_trace(http::Headers& headers, const telemetry::TraceContext& context);

}  // namespace mc::serve
