#include "load/driver.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "load/target.h"

using namespace mc;
using namespace mc::load;
using namespace std::chrono_literals;
using trace::Status;

namespace {

// An OpenAI server that answers as told, on the loop of the test.
struct Fake {
  SteadyClock clock;
  io::Loop loop{clock};
  std::vector<http::Exchange> waiting;  // streams that were not answered at once
  std::vector<Json> bodies;
  std::vector<std::string> ids;  // that requests gave themselves
  size_t open_max = 0;
  std::string mode = "stream";
  std::string not_ready;
  std::string models;  // what /v1/models answers instead
  std::unique_ptr<http::Server> server;
  http::Client client{loop};

  Fake() {
    auto opened =
        http::Server::open(loop, "127.0.0.1:0", {}, [this](http::Exchange x) { handle(x); });
    REQUIRE(opened);
    server = std::move(*opened);
  }
  std::string url() const { return "http://" + server->address(); }

  static void stream(const http::Exchange& x, uint64_t tokens) {
    x.start(200, "text/event-stream", {{"x-mc-prefill", "p0"}});
    for (uint64_t i = 0; i < tokens; ++i)
      x.write("data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\n");
    x.write("data: {\"choices\":[],\"usage\":{\"completion_tokens\":" + std::to_string(tokens) +
            "}}\n\ndata: [DONE]\n\n");
    x.end();
  }
  void handle(const http::Exchange& x) {
    const std::string& path = x.request().path;
    if (path == "/ready" && mode != "bare")
      return x.reply(not_ready.empty() ? 200 : 503, "application/json", not_ready);
    if (path == "/v1/models" && !models.empty()) return x.reply(200, "text/html", models);
    if (path == "/v1/models")
      return x.reply(200, "application/json",
                     R"({"data":[{"id":"tiny","object":"model","vocab":512},{"id":"b"}]})");
    if (path != "/v1/completions") return x.reply(404, "text/plain", "no such page");
    auto body = parse_json(x.request().body);
    REQUIRE(body);
    bodies.push_back(std::move(*body));
    const auto id = x.request().headers.find("x-request-id");
    ids.push_back(id == x.request().headers.end() ? "" : id->second);
    const Json& asked = bodies.back();
    if (mode == "stream") return stream(x, asked["max_tokens"].get<uint64_t>());
    if (mode == "reject")
      return x.reply(429, "application/json", "{}", {{"x-mc-reject-reason", "tbt_slo"}});
    if (mode == "error") {
      x.start(200, "text/event-stream");
      x.write(
          "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: {\"error\":{\"code\":\"lost\"}}\n\n");
      return x.end();
    }
    waiting.push_back(x);  // "hold"
    open_max = std::max(open_max, waiting.size());
  }
  bool wait(const std::function<bool()>& done) {
    const Time end = clock.now() + 20s;
    while (!done()) {
      if (clock.now() > end || !loop.turn(5ms)) return false;
    }
    return true;
  }
};

trace::Trace trace_of(size_t n, uint64_t gap_ms, uint64_t output = 3) {
  trace::Trace t;
  for (size_t i = 0; i < n; ++i) t.records.push_back({i * gap_ms, 1000, output, {1, 100 + i}});
  return t;
}

struct Run {
  trace::Trace trace;
  std::unique_ptr<Driver> driver;
  bool finished = false;

  Run(Fake& fake, trace::Trace t, DriveOptions options = {}, double speed = 1)
      : trace(std::move(t)) {
    options.url = options.url.empty() ? fake.url() : options.url;
    options.model = "tiny";
    auto schedule = trace::schedule(trace, {.speed = speed});
    REQUIRE(schedule);
    auto made = Driver::make(fake.loop, fake.client, std::move(*schedule), options);
    REQUIRE(made);
    driver = std::move(*made);
    driver->start([this] { finished = true; });
  }
};

}  // namespace

TEST_CASE("requests are what the trace says, and their results come in its order") {
  Fake fake;
  Run run(fake, trace_of(20, 2));
  REQUIRE(fake.wait([&] { return run.finished; }));
  const auto results = run.driver->take_results();
  REQUIRE(results.size() == 20);
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& r = results[i];
    CHECK(r.id == i);
    CHECK(r.status == Status::kOk);
    CHECK(r.t_intended_ms == doctest::Approx(2.0 * static_cast<double>(i)));
    CHECK(*r.t_sent_ms >= r.t_intended_ms);
    CHECK(r.input == 1000);
    CHECK(r.hash_blocks == 2);
    CHECK(r.output == 3);
    CHECK(r.gaps_ms.size() == 2);
    CHECK(*r.ttft_ms > 0);
    CHECK(r.prefill == "p0");
  }
  REQUIRE(fake.bodies.size() == 20);
  std::set<std::string> rests;
  for (const Json& body : fake.bodies) {
    CHECK(body["model"] == "tiny");
    CHECK(body["max_tokens"] == 3);
    CHECK(body["ignore_eos"] == true);
    CHECK(body["stream"] == true);
    CHECK(body["stream_options"]["include_usage"] == true);
    REQUIRE(body["prompt"].size() == 1000);
    // The first block is the same in all, the second in none.
    const auto prompt = body["prompt"].get<std::vector<int>>();
    const auto first = fake.bodies[0]["prompt"].get<std::vector<int>>();
    CHECK(std::equal(prompt.begin(), prompt.begin() + 512, first.begin()));
    rests.insert(dump_json(Json(std::vector<int>(prompt.begin() + 512, prompt.end()))));
  }
  CHECK(rests.size() == 20);
}

TEST_CASE("a result has the name under which the server knows the request, answered or not") {
  for (const bool answers : {true, false}) {
    Fake fake;
    fake.mode = answers ? "stream" : "hold";
    Run run(fake, trace_of(2, 0), {.ids = "run"});
    REQUIRE(fake.wait([&] { return fake.ids.size() == 2; }));
    if (!answers) run.driver->stop("enough");
    REQUIRE(fake.wait([&] { return run.finished; }));
    CHECK(std::set(fake.ids.begin(), fake.ids.end()) == std::set<std::string>{"run-0", "run-1"});
    const auto results = run.driver->take_results();
    REQUIRE(results.size() == 2);
    CHECK(results[0].request_id == "run-0");
    CHECK(results[1].request_id == "run-1");
  }
}

TEST_CASE("a prompt as text has a letter for each token and keeps the shared prefix") {
  Fake fake;
  Run run(fake, trace_of(2, 0), {.text = true});
  REQUIRE(fake.wait([&] { return run.finished; }));
  const std::string a = fake.bodies[0]["prompt"], b = fake.bodies[1]["prompt"];
  CHECK(a.size() == 1000);
  CHECK(a.substr(0, 512) == b.substr(0, 512));
  CHECK(a.substr(512) != b.substr(512));
}

TEST_CASE("a server that answers nothing does not slow the arrivals") {
  Fake fake;
  fake.mode = "hold";
  Run run(fake, trace_of(30, 3));
  REQUIRE(fake.wait([&] { return fake.waiting.size() == 30; }));
  CHECK(run.driver->progress().sent == 30);
  CHECK(run.driver->progress().ok == 0);
  for (const auto& x : fake.waiting) Fake::stream(x, 1);
  REQUIRE(fake.wait([&] { return run.finished; }));
  const auto results = run.driver->take_results();
  // Waiting counts: the first was held until the last was sent, 87 ms of the schedule later.
  CHECK(*results[0].ttft_ms >= 87);
  CHECK(run.driver->elapsed() >= 87ms);
}

TEST_CASE("a closed load keeps N in flight and never more") {
  Fake fake;
  fake.mode = "hold";
  Run run(fake, trace_of(12, 1000), {.concurrency = 3});
  REQUIRE(fake.wait([&] { return fake.waiting.size() == 3; }));
  while (!run.finished) {
    REQUIRE(fake.wait([&] { return run.finished || !fake.waiting.empty(); }));
    if (fake.waiting.empty()) break;
    const auto x = fake.waiting.back();
    fake.waiting.pop_back();
    Fake::stream(x, 1);
  }
  CHECK(fake.open_max == 3);
  const auto results = run.driver->take_results();
  CHECK(results.size() == 12);
  // Each is due once enough of those before it have ended.
  std::vector<double> ends;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& r = results[i];
    CHECK(*r.t_sent_ms >= r.t_intended_ms);
    std::sort(ends.begin(), ends.end());
    if (i >= 3) CHECK(r.t_intended_ms >= ends[i - 3]);
    ends.push_back(r.t_intended_ms + *r.e2e_ms);
  }
}

TEST_CASE("refusals, errors in mid-stream and a dead server each have their status and reason") {
  Fake fake;
  const auto outcome = [&](const std::string& mode) {
    fake.mode = mode;
    Run run(fake, trace_of(3, 1), {.timeout = mode == "hold" ? 50ms : 10s});
    CHECK(fake.wait([&] { return run.finished; }));
    const auto results = run.driver->take_results();
    REQUIRE(results.size() == 3);
    return std::pair(results[0].status, results[0].reason);
  };
  CHECK(outcome("reject") == std::pair(Status::kRejected, std::string("tbt_slo")));
  CHECK(outcome("error") == std::pair(Status::kFailed, std::string("lost")));
  CHECK(outcome("hold") == std::pair(Status::kTimeout, std::string("timeout")));
  Run gone(fake, trace_of(3, 1), {.url = "http://127.0.0.1:1"});
  REQUIRE(fake.wait([&] { return gone.finished; }));
  const auto results = gone.driver->take_results();
  CHECK(results[0].status == Status::kFailed);
  CHECK(results[0].http == 0);
  CHECK(results[0].reason.find("Connection refused") != std::string::npos);
}

TEST_CASE("stopping cancels what is in flight, sends no more and reports what was sent") {
  Fake fake;
  fake.mode = "hold";
  auto trace = trace_of(3, 0);
  trace.records.push_back({3'600'000, 1000, 3, {1, 9}});
  Run run(fake, std::move(trace));
  REQUIRE(fake.wait([&] { return fake.waiting.size() == 3; }));
  run.driver->stop("interrupted");
  CHECK(run.finished);
  const auto results = run.driver->take_results();
  REQUIRE(results.size() == 3);
  for (const auto& r : results) CHECK(r.status == Status::kCancelled);
  CHECK(fake.wait([&] {
    return std::all_of(fake.waiting.begin(), fake.waiting.end(),
                       [](const http::Exchange& x) { return x.gone(); });
  }));
}

TEST_CASE("exit statuses: integrity, then failures, then the schedule, then gates") {
  trace::Summary s;
  CHECK(exit_status(s, false) == 0);
  s.rejected = 5;
  CHECK(exit_status(s, false) == 0);
  s.gates.push_back({"effective>=0.95", false});
  CHECK(exit_status(s, false) == 5);
  s.schedule_kept = false;
  CHECK(exit_status(s, false) == 6);
  s.timeout = 1;
  CHECK(exit_status(s, false) == 1);
  s.kv_errors = 1;
  CHECK(exit_status(s, false) == 4);
  CHECK(exit_status(trace::Summary{}, true) == 1);
}

TEST_CASE("a server is ready when it says so, or when it has models and no such page") {
  Fake fake;
  Target target(fake.loop, fake.client, fake.url() + "/");
  CHECK(target.wait_ready(5s));
  fake.not_ready = "no decode worker";
  const auto refused = target.wait_ready(250ms);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kUnavailable);
  CHECK(refused.error().what.find("no decode worker") != std::string::npos);
  fake.mode = "bare";
  CHECK(target.wait_ready(5s));
  const auto model = target.model();
  REQUIRE(model);
  CHECK(model->id == "tiny");
  CHECK(*model->vocab == 512);
  CHECK(!target.cluster().prefill);
  fake.server.reset();
  const auto gone = target.wait_ready(250ms);
  REQUIRE(!gone);
  CHECK(gone.error().code == Code::kUnavailable);
}

TEST_CASE("a page where the list of models should be is named, with its beginning") {
  Fake fake;
  Target target(fake.loop, fake.client, fake.url());
  fake.models = "<!doctype html><title>Welcome</title>" + std::string(4000, 'x');
  const auto page = target.model();
  REQUIRE(!page);
  CHECK(page.error().code == Code::kUnavailable);
  for (const std::string& part : {fake.url() + "/v1/models", std::string("<!doctype html>")})
    CHECK_MESSAGE(page.error().what.find(part) != std::string::npos, page.error().what);
  CHECK(page.error().what.size() < 300);
  fake.models = R"({"data":[{"name":"tiny"}]})";
  const auto nameless = target.model();
  REQUIRE(!nameless);
  CHECK_MESSAGE(nameless.error().what.find(fake.url() + "/v1/models") != std::string::npos,
                nameless.error().what);
}

TEST_CASE("what /cluster says is read as far as it goes") {
  const Cluster c = parse_cluster(
      R"({"policy":"kvcache","admission":"early","block_size":512,"nodes":[
        {"role":"prefill","blocks_total":40,"kv_errors":1},{"role":"prefill","blocks_total":40},
        {"role":"decode","kv_errors":2},{"role":"both","blocks_total":40},7]})");
  CHECK(*c.prefill == 3);
  CHECK(*c.decode == 2);
  CHECK(c.policy == "kvcache");
  CHECK(*c.block_tokens == 512);
  CHECK(*c.kv_errors == 3);
  CHECK(*c.cache_blocks == 40);
  CHECK(!parse_cluster("[]").prefill);
  CHECK(!parse_cluster("{").kv_errors);
}
