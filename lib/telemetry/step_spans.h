// Records the steps of a request's work as spans: calls to the store, its answers, transfers.
//
//   const StepScope scope(telemetry::steps_below(span, clock));
//   store.get_batch(...);                 // its spans are below `span`
//   server->trace_calls([&](const std::string& wire) {
//     return telemetry::answer_step(tracer, wire, clock);
//   });
//
// Thread: any. The tracer and the clock outlive what is returned.
#pragma once
#include <memory>
#include <string>

#include "base/step_trace.h"
#include "telemetry/tracer.h"

namespace mc::telemetry {

// nullptr: the span is not recorded, or has ended.
std::shared_ptr<StepTrace> steps_below(const OpenSpan& span, const Clock& clock);

// The answer to a call that came with `wire` (to_wire()), from now on. nullptr: not recorded.
std::shared_ptr<StepTrace> answer_step(Tracer& tracer, const std::string& wire, const Clock& clock);

}  // namespace mc::telemetry
