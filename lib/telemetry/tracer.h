// Records what a request did as spans of one trace, from the client's header on.
//
//   OpenSpan request = tracer.begin(read_traceparent(header), now);  // decides whether to record
//   OpenSpan call(tracer, request.context(), now);                   // a step that takes part
//   client.call(..., to_wire(call.context()));
//   call.end("reserve", later, {{"mc.node", "d0"}});
//   request.step("decide", from, until);                             // a step that is over
//   request.end("POST /v1/completions", later);
//
// Where there is no tracer, or a trace is not sampled, all of it does nothing.
//
// Thread: an OpenSpan has one owner; a Tracer any. The exporter has its own.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/options.h"
#include "base/random.h"
#include "telemetry/exporter.h"
#include "telemetry/span.h"
#include "telemetry/trace_context.h"

namespace mc::telemetry {

struct OtlpOptions {
  std::string url;
  void describe(OptionList& v);
};

class Tracer;

class OpenSpan {
 public:
  OpenSpan() = default;
  // Below `parent`: recorded if that is.
  OpenSpan(Tracer* tracer, const TraceContext& parent, Time begin);
  OpenSpan(Tracer* tracer, const std::optional<TraceContext>& parent, Time begin)
      : OpenSpan(tracer, parent ? *parent : TraceContext(), begin) {}

  explicit operator bool() const { return tracer_ != nullptr; }  // it is recorded, and not ended
  // For those below it. Not valid where nothing is known of a trace.
  const TraceContext& context() const { return context_; }
  Tracer* tracer() const { return tracer_; }  // nullptr: not recorded, or ended
  OpenSpan child(Time begin_at) const { return {tracer_, context_, begin_at}; }
  // A span below it that has begun and ended.
  void step(std::string name, Time from, Time until, Attributes attributes = {}) const;
  // Records it. Later calls do nothing.
  void end(std::string name, Time at, Attributes attributes = {}, std::string error = {},
           SpanKind kind = SpanKind::kInternal);

 private:
  friend class Tracer;
  Tracer* tracer_ = nullptr;
  TraceContext context_;
  SpanId parent_{};
  Time begin_{};
};

class Tracer {
 public:
  // nullptr where no url is given. `service`, `instance`: of this process, as "mc-prefill", "p0".
  // Starts a thread. Errors: kInvalid for the url.
  static Result<std::unique_ptr<Tracer>> open(const OtlpOptions& options,
                                              const std::string& service,
                                              const std::string& instance, const Clock& clock,
                                              Metrics& metrics);
  explicit Tracer(std::unique_ptr<SpanExporter> exporter);

  // The span of a client's request. The client's trace goes on, recorded if it says so; without one
  // a trace begins, which is recorded for `ratio` of them.
  OpenSpan begin(const std::optional<TraceContext>& client, double ratio, Time at);
  SpanId next_span();
  void record(Span span) { exporter_->record(std::move(span)); }

 private:
  Mutex mutex_;
  Random random_ MC_GUARDED_BY(mutex_);
  std::unique_ptr<SpanExporter> exporter_;
};

}  // namespace mc::telemetry
