#include "telemetry/step_spans.h"

#include <utility>

namespace mc::telemetry {
namespace {

SpanKind span_kind(StepKind kind) {
  if (kind == StepKind::kCall) return SpanKind::kClient;
  return kind == StepKind::kAnswer ? SpanKind::kServer : SpanKind::kInternal;
}

class SpanStep : public StepTrace {
 public:
  // What is below `above`.
  SpanStep(Tracer& tracer, TraceContext above, const Clock& clock)
      : tracer_(tracer), clock_(clock), context_(std::move(above)) {}
  SpanStep(Tracer& tracer, const TraceContext& above, const Clock& clock, StepKind kind)
      : tracer_(tracer),
        clock_(clock),
        kind_(span_kind(kind)),
        span_(&tracer, above, clock.now()),
        context_(span_.context()) {}

  std::shared_ptr<StepTrace> begin(StepKind kind) override {
    return std::make_shared<SpanStep>(tracer_, context_, clock_, kind);
  }
  std::string wire() const override { return to_wire(context_); }
  void end(const char* name, const StepFacts& facts) override {
    Attributes attributes;
    if (!facts.where.empty()) attributes.emplace_back("mc.to", facts.where);
    if (facts.items > 0) attributes.emplace_back("mc.items", static_cast<int64_t>(facts.items));
    if (facts.bytes > 0) attributes.emplace_back("mc.bytes", static_cast<int64_t>(facts.bytes));
    span_.end(name, clock_.now(), std::move(attributes), facts.error, kind_);
  }

 private:
  Tracer& tracer_;
  const Clock& clock_;
  const SpanKind kind_ = SpanKind::kInternal;
  OpenSpan span_;
  const TraceContext context_;
};

}  // namespace

std::shared_ptr<StepTrace> steps_below(const OpenSpan& span, const Clock& clock) {
  if (!span) return nullptr;
  return std::make_shared<SpanStep>(*span.tracer(), span.context(), clock);
}

std::shared_ptr<StepTrace> answer_step(Tracer& tracer, const std::string& wire,
                                       const Clock& clock) {
  const auto above = from_wire(wire);
  if (!above) return nullptr;
  return std::make_shared<SpanStep>(tracer, *above, clock, StepKind::kAnswer);
}

}  // namespace mc::telemetry
