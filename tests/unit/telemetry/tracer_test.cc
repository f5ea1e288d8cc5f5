#include "telemetry/tracer.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "http/server.h"
#include "telemetry/step_spans.h"
#include "tests/stretched_clock.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::telemetry;
using http::testing::wait_until;
using namespace std::chrono_literals;

namespace {

const std::string kFrom = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

// A collector that answers as told, and a tracer that sends to it.
struct World {
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::vector<Json> spans;
  std::vector<http::Exchange> unanswered;
  std::string path, type;
  Json resource;
  int posts = 0, status = 200;
  std::string answer = "{}";
  bool answers = true;
  std::unique_ptr<http::Server> server;
  std::unique_ptr<Tracer> tracer;

  explicit World(size_t queue_max = 8192) {
    auto opened =
        http::Server::open(loop, "127.0.0.1:0", {}, [this](const http::Exchange& x) { take(x); });
    REQUIRE(opened);
    server = std::move(*opened);
    ExporterOptions o;
    o.url = *SpanExporter::full_url("http://" + server->address());
    o.resource = {{"service.name", std::string("mc-test")}};
    o.queue_max = queue_max;
    o.every = o.pause = 5ms;
    tracer = std::make_unique<Tracer>(std::make_unique<SpanExporter>(o, clock, metrics));
  }
  void take(const http::Exchange& x) {
    ++posts;
    if (!answers) return unanswered.push_back(x);
    const auto json = parse_json(x.request().body);
    REQUIRE(json);
    path = x.request().path;
    type = x.request().headers.at("content-type");
    resource = (*json)["resourceSpans"][0]["resource"];
    if (status == 200)
      for (const Json& s : (*json)["resourceSpans"][0]["scopeSpans"][0]["spans"])
        spans.push_back(s);
    x.reply(status, "application/json", answer);
  }
  uint64_t count(const char* result) {
    return metrics.counter("mc_otlp_spans_total", "", {{"result", result}}).value();
  }
  bool counted(const char* result, uint64_t n) {
    return wait_until(loop, [&] { return count(result) == n; });
  }
  Time now() { return clock.now(); }
};

}  // namespace

TEST_CASE("tracer: a client's trace goes on, from span to span") {
  World w;
  OpenSpan request = w.tracer->begin(read_traceparent(kFrom, "a=1"), 0, w.now());
  CHECK(static_cast<bool>(request));
  OpenSpan call = request.child(w.now());
  OpenSpan elsewhere(w.tracer.get(), from_wire(to_wire(call.context())), w.now());
  elsewhere.end("work", w.now(), {}, "it broke", SpanKind::kServer);
  call.end("call", w.now(), {}, "", SpanKind::kClient);
  request.step("decide", w.now(), w.now() + 3ms,
               {{"text", std::string("\xff\"")}, {"n", int64_t{-5}}, {"d", 0.5}, {"b", true}});
  request.end("request", w.now());
  request.end("request", w.now());  // is over
  REQUIRE(wait_until(w.loop, [&] { return w.spans.size() >= 4; }));
  CHECK(w.path == "/v1/traces");
  CHECK(w.type == "application/json");
  CHECK(dump_json(w.resource) ==
        R"({"attributes":[{"key":"service.name","value":{"stringValue":"mc-test"}}]})");
  REQUIRE(w.spans.size() == 4);
  const Json &work = w.spans[0], &called = w.spans[1], &decide = w.spans[2], &root = w.spans[3];
  for (const Json& s : w.spans) {
    CHECK(s["traceId"] == "0af7651916cd43dd8448eb211c80319c");
    CHECK(s["spanId"].get<std::string>().size() == 16);
    const auto begin = std::stoll(s["startTimeUnixNano"].get<std::string>());
    CHECK(std::abs(begin - wall_now_ns()) < 600'000'000'000);
    CHECK(std::stoll(s["endTimeUnixNano"].get<std::string>()) >= begin);
  }
  CHECK(root["parentSpanId"] == "b7ad6b7169203331");
  CHECK(root["traceState"] == "a=1");
  CHECK(called["parentSpanId"] == root["spanId"]);
  CHECK(decide["parentSpanId"] == root["spanId"]);
  CHECK(work["parentSpanId"] == called["spanId"]);
  CHECK(work["kind"] == 2);
  CHECK(called["kind"] == 3);
  CHECK(decide["kind"] == 1);
  CHECK(dump_json(work["status"]) == R"({"code":2,"message":"it broke"})");
  CHECK_FALSE(root.contains("status"));
  CHECK(decide["attributes"][1]["value"]["intValue"] == "-5");
  CHECK(decide["attributes"][2]["value"]["doubleValue"] == 0.5);
  CHECK(decide["attributes"][3]["value"]["boolValue"] == true);
  CHECK(w.counted("sent", 4));
}

TEST_CASE("tracer: the steps of a thread's work are spans below the request's") {
  World w;
  OpenSpan request = w.tracer->begin(read_traceparent(kFrom), 0, w.now());
  const auto trace = steps_below(request, w.clock);
  std::thread([&] {  // as a store client's
    const StepScope scope(trace);
    Step get("get");
    get.facts.items = 3;
    Step call("get-replicas", StepKind::kCall);
    call.facts.where = "127.0.0.1:5550";
    call.facts.error = "no answer";
    const auto answer = answer_step(*w.tracer, call.wire(), w.clock);
    REQUIRE(answer != nullptr);
    answer->end("get-replicas", {});
  })
      .join();
  {
    const StepScope scope(trace);
    {
      const StepScope none(nullptr);
      CHECK_FALSE(static_cast<bool>(Step("of no request")));
    }
    const Step put("put");
    CHECK(StepTrace::current() != trace);
  }
  CHECK(StepTrace::current() == nullptr);
  CHECK(answer_step(*w.tracer, "too short", w.clock) == nullptr);
  request.end("request", w.now());
  CHECK(steps_below(request, w.clock) == nullptr);
  REQUIRE(wait_until(w.loop, [&] { return w.spans.size() >= 5; }));
  std::map<std::string, Json> by;  // the answer's name has a mark
  for (const Json& s : w.spans)
    by[s["name"].get<std::string>() + (s["kind"] == 2 ? " answered" : "")] = s;
  REQUIRE(by.size() == 5);
  CHECK(by["get"]["parentSpanId"] == by["request"]["spanId"]);
  CHECK(by["put"]["parentSpanId"] == by["request"]["spanId"]);
  CHECK(by["get-replicas"]["parentSpanId"] == by["get"]["spanId"]);
  CHECK(by["get-replicas"]["kind"] == 3);
  CHECK(by["get-replicas"]["status"]["message"] == "no answer");
  CHECK(by["get-replicas answered"]["parentSpanId"] == by["get-replicas"]["spanId"]);
  CHECK(dump_json(by["get"]["attributes"]) == R"([{"key":"mc.items","value":{"intValue":"3"}}])");
}

TEST_CASE("tracer: who decides what is recorded") {
  World w;
  const std::string no = kFrom.substr(0, kFrom.size() - 1) + "0";
  OpenSpan unwanted = w.tracer->begin(read_traceparent(no), 1, w.now());
  CHECK_FALSE(static_cast<bool>(unwanted));
  CHECK(traceparent(unwanted.context()) == no);  // an engine must not begin another
  CHECK(to_wire(unwanted.context()).empty());
  unwanted.step("decide", w.now(), w.now());
  unwanted.end("request", w.now());
  OpenSpan unlucky = w.tracer->begin(std::nullopt, 0, w.now());
  CHECK_FALSE(static_cast<bool>(unlucky));
  CHECK(unlucky.context().valid());
  OpenSpan off(nullptr, read_traceparent(kFrom), w.now());
  CHECK_FALSE(static_cast<bool>(off));
  off.end("request", w.now());
  OpenSpan fresh = w.tracer->begin(std::nullopt, 1, w.now());
  REQUIRE(static_cast<bool>(fresh));
  CHECK(fresh.context().trace != unlucky.context().trace);
  fresh.end("request", w.now());
  REQUIRE(wait_until(w.loop, [&] { return !w.spans.empty(); }));
  CHECK(w.spans.size() == 1);
  CHECK_FALSE(w.spans[0].contains("parentSpanId"));
  size_t recorded = 0;
  for (int i = 0; i < 1000; ++i)
    recorded += static_cast<bool>(w.tracer->begin(std::nullopt, 0.25, w.now())) ? 1 : 0;
  CHECK(recorded > 150);
  CHECK(recorded < 350);
}

TEST_CASE("tracer: what a collector does not take is counted, or sent again") {
  World w;
  const auto record = [&] { w.tracer->begin(std::nullopt, 1, w.now()).end("x", w.now()); };
  SUBCASE("refused for good") {
    w.status = 400;
    record();
    CHECK(w.counted("refused", 1));
    CHECK(w.posts == 1);
  }
  SUBCASE("full for a while") {
    w.status = 503;
    record();
    REQUIRE(wait_until(w.loop, [&] { return w.posts == 2; }));
    w.status = 200;
    CHECK(w.counted("sent", 1));
    CHECK(w.spans.size() == 1);
  }
  SUBCASE("full for ever") {
    w.status = 429;
    record();
    CHECK(w.counted("dropped", 1));
    CHECK(w.posts == SpanExporter::kTries);
  }
  SUBCASE("a part is rejected") {
    w.answer = R"({"partialSuccess":{"rejectedSpans":"1","errorMessage":"no"}})";
    record();
    CHECK(w.counted("refused", 1));
    CHECK(w.count("sent") == 0);
  }
  SUBCASE("rubbish says nothing") {
    w.answer = R"({"partialSuccess":{"rejectedSpans":"99999999999999999999"}} <html>)";
    record();
    CHECK(w.counted("sent", 1));
  }
}

TEST_CASE("tracer: a collector that never answers costs spans and nothing else") {
  World w(100);
  w.answers = false;
  const auto record = [&] { w.tracer->begin(std::nullopt, 1, w.now()).end("x", w.now()); };
  record();
  REQUIRE(wait_until(w.loop, [&] { return w.posts == 1; }));
  for (int i = 0; i < 1000; ++i) record();
  CHECK(w.count("dropped") == 900);
  w.tracer.reset();  // ends all the same
  CHECK(w.count("dropped") == 1001);
}

TEST_CASE("tracer: what waits at the end is sent") {
  World w;
  w.tracer.reset();
  ExporterOptions o;
  o.url = "http://" + w.server->address() + "/v1/traces";
  o.every = 1h;
  StretchedClock clock;  // the last words have a second
  auto tracer = std::make_unique<Tracer>(std::make_unique<SpanExporter>(o, clock, w.metrics));
  for (int i = 0; i < 700; ++i) tracer->begin(std::nullopt, 1, w.now()).end("x", w.now());
  std::thread ends([&] { tracer.reset(); });
  const bool all = wait_until(w.loop, [&] { return w.spans.size() == 700; });
  ends.join();
  CHECK(all);
  CHECK(w.posts == 2);
}

TEST_CASE("tracer: the collector's url") {
  CHECK(*SpanExporter::full_url("http://127.0.0.1:4318") == "http://127.0.0.1:4318/v1/traces");
  CHECK(*SpanExporter::full_url("https://c.example/") == "https://c.example/v1/traces");
  CHECK(*SpanExporter::full_url("http://c:1/otlp/v1/traces") == "http://c:1/otlp/v1/traces");
  for (const char* bad : {"127.0.0.1:4318", "grpc://c:4317", "http://", "http:///x", "http://a b",
                          "http://user@host", ""})
    CHECK_FALSE(SpanExporter::full_url(bad));
  SteadyClock clock;
  Metrics metrics;
  CHECK(*Tracer::open({}, "s", "i", clock, metrics) == nullptr);
  CHECK_FALSE(Tracer::open({"c:4318"}, "s", "i", clock, metrics));
}
