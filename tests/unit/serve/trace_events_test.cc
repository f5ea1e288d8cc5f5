#include "serve/runtime/trace_events.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "base/json.h"
#include "io/file.h"

namespace mc::serve {
namespace trace_events_test {
namespace {

using namespace std::chrono_literals;
const Time t0{std::chrono::seconds(100)};

Json written(const TraceEvents& trace) {
  const std::string path = "/tmp/mc-trace-" + std::to_string(::getpid()) + ".json";
  REQUIRE(trace.write(path, "p0"));
  const auto text = io::read_file(path, 1 << 26);
  ::unlink(path.c_str());
  REQUIRE(text);
  return *parse_json(*text);
}

TEST_CASE("spans are complete events in microseconds, one thread a track") {
  TraceEvents trace;
  trace.span("compute", "layer 0", t0, t0 + 2ms, "r1");
  trace.span("send", "layer 0", t0 + 2ms, t0 + 5ms, "r1");
  trace.span("compute", "layer 1", t0 + 2ms, t0 + 4ms, "r1");
  std::vector<Json> spans;
  const Json all = written(trace);
  for (const Json& e : all.at("traceEvents"))
    if (e.at("ph") == "X") spans.push_back(e);
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].at("ts") == 100e6);
  CHECK(spans[1].at("dur") == 3000);
  CHECK(spans[0].at("tid") == spans[2].at("tid"));
  CHECK(spans[0].at("tid") != spans[1].at("tid"));
  CHECK(spans[2].at("args").at("request") == "r1");
}

TEST_CASE("the oldest spans make room, and a folder that is not there is an error") {
  TraceEvents trace;
  for (size_t i = 0; i < TraceEvents::kEventsMax + 10; ++i)
    trace.span("compute", std::to_string(i), t0, t0, "");
  CHECK(trace.size() == TraceEvents::kEventsMax);
  TraceEvents one;  // of all of them the text would take seconds
  one.span("compute", "1", t0, t0, "");
  CHECK_FALSE(one.write("/nowhere/at/all.json", "p0"));
}

}  // namespace
}  // namespace trace_events_test
}  // namespace mc::serve
