#include "telemetry/tracer.h"

#include <cstring>
#include <utility>

namespace mc::telemetry {

void OtlpOptions::describe(OptionList& v) {
  v("otlp", url,
    "OpenTelemetry collector that gets the spans of requests, as http://127.0.0.1:4318; empty: "
    "none are recorded");
}

OpenSpan::OpenSpan(Tracer* tracer, const TraceContext& parent, Time begin)
    : context_(parent), parent_(parent.span), begin_(begin) {
  if (tracer == nullptr || !parent.valid() || !parent.sampled) return;
  tracer_ = tracer;
  context_.span = tracer->next_span();
}

void OpenSpan::step(std::string name, Time from, Time until, Attributes attributes) const {
  if (tracer_ != nullptr) child(from).end(std::move(name), until, std::move(attributes));
}

void OpenSpan::end(std::string name, Time at, Attributes attributes, std::string error,
                   SpanKind kind) {
  Tracer* const tracer = std::exchange(tracer_, nullptr);
  if (tracer == nullptr) return;
  tracer->record({context_, parent_, std::move(name), kind, begin_, at, std::move(attributes),
                  std::move(error)});
}

Result<std::unique_ptr<Tracer>> Tracer::open(const OtlpOptions& options, const std::string& service,
                                             const std::string& instance, const Clock& clock,
                                             Metrics& metrics) {
  if (options.url.empty()) return std::unique_ptr<Tracer>();
  ExporterOptions o;
  MC_TRY(o.url, SpanExporter::full_url(options.url));
  o.resource = {{"service.name", service}, {"service.instance.id", instance}};
  return std::make_unique<Tracer>(std::make_unique<SpanExporter>(std::move(o), clock, metrics));
}

Tracer::Tracer(std::unique_ptr<SpanExporter> exporter)
    : random_(fresh_seed()), exporter_(std::move(exporter)) {}

OpenSpan Tracer::begin(const std::optional<TraceContext>& client, double ratio, Time at) {
  TraceContext c;
  if (client) {
    c = *client;
  } else {
    {
      const Lock lock(mutex_);
      const uint64_t high = random_.next(), low = random_.next() | 1;  // never all zero
      std::memcpy(c.trace.data(), &high, sizeof high);
      std::memcpy(c.trace.data() + sizeof high, &low, sizeof low);
      c.sampled = random_.chance(ratio);
    }
    c.span = next_span();
  }
  if (client) return {this, c, at};
  OpenSpan root;  // nothing is above it
  root.context_ = c;
  root.begin_ = at;
  if (c.sampled) root.tracer_ = this;
  return root;
}

SpanId Tracer::next_span() {
  const uint64_t n = [this] {
    const Lock lock(mutex_);
    return random_.next() | 1;
  }();
  SpanId id{};
  std::memcpy(id.data(), &n, sizeof n);
  return id;
}

}  // namespace mc::telemetry
