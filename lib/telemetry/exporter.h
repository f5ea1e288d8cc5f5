// Sends spans to a collector, as OTLP over HTTP: POST to /v1/traces, in JSON.
//
// A thread of its own encodes and sends them in batches. Who records a span takes a lock and
// appends it, nothing else: a collector that is gone, slow or wrong costs spans, which are counted,
// and no request's time. What it does not take for now is sent again, kTries times in all.
//
// Thread: record() any; the rest the owner's.
// Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "http/client.h"
#include "io/loop.h"
#include "telemetry/span.h"

namespace mc::telemetry {

struct ExporterOptions {
  std::string url;          // of the collector, as SpanExporter::full_url() gives it
  Attributes resource;      // what all spans have: service.name, ...
  size_t queue_max = 8192;  // spans that wait; more are dropped
  Duration every = std::chrono::milliseconds(500);
  Duration timeout = std::chrono::seconds(10);  // of a POST
  Duration pause = std::chrono::seconds(1);     // before the second try, doubled for the next
};

class SpanExporter {
 public:
  static constexpr size_t kBatchMax = 512;  // spans in a POST
  static constexpr int kTries = 4;

  // http://host:4318 is sent to /v1/traces there; a url with a path is taken as it is. Errors:
  // kInvalid for what is no http or https url.
  static Result<std::string> full_url(const std::string& url);

  // `clock` and `metrics` outlive it.
  SpanExporter(ExporterOptions options, const Clock& clock, Metrics& metrics);
  ~SpanExporter();  // sends what waits, for `kLastWords` at most
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;
  static constexpr Duration kLastWords = std::chrono::seconds(1);

  void record(Span span);

 private:
  void run();
  void look();  // sends a batch, if none is on its way
  void post();
  void answered(const Result<http::ClientResponse>& answer);
  void over(Counter& as, uint64_t refused = 0);

  const ExporterOptions options_;
  const Clock& clock_;
  Counter &sent_, &dropped_, &refused_;
  io::Loop loop_;
  Mutex mutex_;
  std::deque<Span> waiting_ MC_GUARDED_BY(mutex_);
  // The thread's own.
  std::unique_ptr<http::Client> client_;
  std::vector<Span> batch_;  // on its way
  bool posting_ = false, pausing_ = false, warned_ = false;
  int tries_ = 0;
  Time end_ = Time::max();  // then it stops
  std::thread thread_;      // last: it uses the others
};

}  // namespace mc::telemetry
