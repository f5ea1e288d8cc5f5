// A conductor with its API server, own workers or none, and external engines that are mocks.
#pragma once
#include <algorithm>
#include <atomic>

#include "conductor_fakes.h"
#include "http/client.h"
#include "mock_engine.h"
#include "serve/frontend/api_server.h"
#include "tests/unit/http/raw.h"

namespace mc::serve::test {

// The machine's, and what a test skipped of it.
class SkippingClock final : public Clock {
 public:
  Time now() const override { return steady_.now() + Duration(skipped_.load()); }
  void skip(Duration time) { skipped_ += time.count(); }

 private:
  SteadyClock steady_;
  std::atomic<Duration::rep> skipped_{0};
};

struct Mixed {
  explicit Mixed(bool workers, const std::string& state = {}, const std::string& keys = {})
      : Mixed(with_state(state), workers, keys) {}
  static ConductorOptions with_state(const std::string& state) {
    ConductorOptions o = quick();
    o.external_state = state;
    return o;
  }
  Mixed(ConductorOptions o, bool workers, const std::string& keys = {}, ApiServerOptions web = {}) {
    o.policy.balancing_threshold = 2;
    conductor = *Conductor::open(loop, o, 42, metrics);
    web.http = "127.0.0.1:0";
    web.admin_socket = "/tmp/mc-admin-{port}.sock";
    web.api_keys = keys;
    api = *ApiServer::open(loop, web, *conductor, metrics, "{}");
    if (!workers) return;
    decode = std::make_unique<FakeDecode>(loop, conductor->control(), "d0");
    prefill = std::make_unique<FakePrefill>(loop, conductor->control(), "p0");
    prefill->then = [this](const std::string& r) { decode->send(r, {65, 66}, "length"); };
    REQUIRE(until(loop, [&] { return conductor->not_ready().empty(); }));
  }
  MockEngine& engine(const std::string& name, uint64_t block = 4, const char* model = "tiny",
                     const char* role = "both", const std::string& key = {}) {
    engines.push_back(std::make_unique<MockEngine>(loop, model, block));
    MockEngine& e = *engines.back();
    e.key = key;
    const auto r = administer("/register", e.registration(name, role));
    REQUIRE_MESSAGE(r.status == 200, r.body);
    REQUIRE(until(loop, [&] { return conductor->external().find(name)->up; }));
    return e;
  }
  struct Answer {
    int status = 0;
    std::map<std::string, std::string> headers;
    std::string body;
    std::optional<Error> error;
    bool done = false;
  };
  http::Client::Id send(const std::string& path, const std::string& body, Answer& a) {
    http::ClientRequest r;
    r.method = body.empty() ? "GET" : "POST";
    r.url = "http://" + api->http() + path;
    r.headers = headers;
    const bool typed = std::any_of(headers.begin(), headers.end(),
                                   [](const auto& h) { return h.first == "content-type"; });
    if (!body.empty() && !typed) r.headers.push_back({"content-type", "application/json"});
    r.body = body;
    http::ClientCallbacks calls;
    calls.on_headers = [&a](int status, const auto& came, Time) {
      a.status = status;
      a.headers = came;
    };
    calls.on_chunk = [&a](std::string_view chunk, Time) { a.body.append(chunk); };
    calls.on_done = [&a](const Result<http::ClientResponse>& r2) {
      a.done = true;
      if (!r2) a.error = r2.error();
    };
    return client.send(std::move(r), std::move(calls));
  }
  Answer ask(const std::string& path, const std::string& body = {}) {
    Answer a;
    send(path, body, a);
    REQUIRE(until(loop, [&] { return a.done; }));
    return a;
  }
  http::testing::RawAnswer administer(const std::string& path, const std::string& body) {
    return http::testing::ask_at(loop, api->admin_socket(), path, body);
  }
  bool indexed(const std::string& name, size_t blocks) {
    return until(loop, [&] { return conductor->external().find(name)->cache->blocks() == blocks; });
  }

  // Lets that time pass at once: in steps so short that nobody thinks this process stood still, and
  // each when nothing is under way that it would make late.
  void skip(Duration time) {
    constexpr Duration kStep = 800ms;
    const auto quiet = [this] {
      const auto& all = conductor->external().all();
      return std::none_of(all.begin(), all.end(), [](const auto& e) {
        return e.second->checking || e.second->asks_metrics ||
               (e.second->stream && e.second->stream->order().replaying());
      });
    };
    for (; time > Duration(0); time -= kStep) {
      REQUIRE(until(loop, quiet));
      clock.skip(std::min(time, kStep));
      REQUIRE(loop.turn(Duration(0)));
    }
    REQUIRE(until(loop, quiet));
  }

  http::Headers headers = {{"x-request-id", "mine"}};
  SkippingClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::unique_ptr<Conductor> conductor;
  std::unique_ptr<ApiServer> api;
  http::Client client{loop};
  std::unique_ptr<FakeDecode> decode;
  std::unique_ptr<FakePrefill> prefill;
  std::vector<std::unique_ptr<MockEngine>> engines;
};

}  // namespace mc::serve::test
