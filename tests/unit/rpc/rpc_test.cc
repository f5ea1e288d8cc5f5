#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/step_trace.h"
#include "rpc/client.h"
#include "rpc/server.h"

using namespace mc;
using namespace std::chrono_literals;

namespace {

struct Echoed {
  static constexpr const char* kName = "echoed";
  std::string text;
  static void fields(auto& a, auto& m) { a(m.text); }
};
struct Echo {
  static constexpr const char* kName = "echo";
  using Reply = Echoed;
  std::string text;
  static void fields(auto& a, auto& m) { a(m.text); }
};
struct Unheard {
  static constexpr const char* kName = "unheard-of";
  using Reply = Echoed;
  static void fields(auto& a, auto&) { a(); }
};

struct World {
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::unique_ptr<rpc::Server> server;
  World() {
    auto opened = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(opened.has_value());
    server = std::move(*opened);
  }
  std::unique_ptr<rpc::Client> client(const std::string& address = {}) {
    auto c = rpc::Client::connect(loop, address.empty() ? server->address() : address);
    REQUIRE(c.has_value());
    return std::move(*c);
  }
  template <class F>
  bool until(F condition, Duration patience = 10s) {
    const Time deadline = clock.now() + patience;
    while (clock.now() < deadline) {
      if (condition()) return true;
      REQUIRE(loop.turn(20ms).has_value());
    }
    return false;
  }
  template <class M>
  Result<typename M::Reply> call(rpc::Client& c, const M& m, Duration budget = 5s) {
    std::optional<Result<typename M::Reply>> got;
    c.call<M>(m, budget, [&](Result<typename M::Reply> r) { got = std::move(r); });
    CHECK(until([&] { return got.has_value(); }));
    return got ? *got : Result<typename M::Reply>(fail(Code::kInternal, "no callback"));
  }
};

Result<Echoed> echo(const Echo& m, const rpc::Call&) {
  if (m.text == "busy") return fail(Code::kBusy, "come back later");
  return Echoed{m.text};
}

}  // namespace

TEST_SUITE("rpc") {
  TEST_CASE("answers and errors arrive as they were given") {
    World w;
    w.server->on<Echo>(echo);
    auto client = w.client();
    CHECK(w.call(*client, Echo{"hello"}).value().text == "hello");
    auto error = w.call(*client, Echo{"busy"});
    REQUIRE_FALSE(error.has_value());
    CHECK(error.error().code == Code::kBusy);
    CHECK(error.error().what == "come back later");
  }

  TEST_CASE("unknown types, other versions and bad bodies get typed errors, and serving goes on") {
    World w;
    w.server->on<Echo>(echo);
    auto client = w.client();
    CHECK(w.call(*client, Unheard{}).error().code == Code::kUnsupported);
    auto raw = rpc::Socket::connect(rpc::Socket::Kind::kDealer, w.server->address());
    REQUIRE(raw.has_value());
    auto ask = [&](const rpc::Envelope& e, const std::string& body) {
      REQUIRE(raw->send({wire::encode(e), body}).has_value());
      std::vector<std::string> frames;
      CHECK(w.until([&] { return !(frames = raw->receive()).empty(); }));
      return rpc::detail::answer_of(frames).body;
    };
    rpc::Envelope e;
    e.type = "echo";
    e.id = 9;
    e.version = 2;
    auto version = ask(e, wire::encode(Echo{"x"}));
    CHECK(version.error().code == Code::kUnsupported);
    CHECK(version.error().what.find("version 2") != std::string::npos);
    e.version = 1;
    CHECK(ask(e, "junk").error().code == Code::kInvalid);
    // Nothing to answer to: dropped, counted, survived.
    for (const std::vector<std::string_view>& junk :
         std::vector<std::vector<std::string_view>>{{"x"}, {"x", "y"}, {"x", "y", "z", "w"}})
      REQUIRE(raw->send(junk).has_value());
    CHECK(w.call(*client, Echo{"still here"}).value().text == "still here");
    CHECK(w.metrics.counter("mc_rpc_malformed_total", "").value() == 3);
  }

  TEST_CASE("nobody there is unavailable; an answer that does not come is a timeout") {
    World w;
    auto nobody = w.client("127.0.0.1:1");
    CHECK(w.call(*nobody, Echo{"x"}, 50ms).error().code == Code::kUnavailable);
    std::vector<rpc::Reply<Echoed>> kept;
    bool keep = false;
    w.server->on_later<Echo>([&](const Echo& m, const rpc::Call&, const rpc::Reply<Echoed>& r) {
      if (keep)
        kept.push_back(r);
      else
        r(Echoed{m.text});
    });
    auto client = w.client();
    CHECK(w.call(*client, Echo{"x"}).has_value());
    keep = true;
    CHECK(w.call(*client, Echo{"y"}, 50ms).error().code == Code::kTimeout);
    kept[0](Echoed{"late"});  // harmless
    keep = false;
    CHECK(w.call(*client, Echo{"z"}).value().text == "z");
  }

  TEST_CASE(
      "a reply that is dropped unused answers internal; one that outlives its server nothing") {
    World w;
    w.server->on_later<Echo>([](const Echo&, const rpc::Call&, const rpc::Reply<Echoed>&) {});
    auto client = w.client();
    CHECK(w.call(*client, Echo{"x"}).error().code == Code::kInternal);
    std::vector<rpc::Reply<Echoed>> kept;
    w.server->on_later<Echo>(
        [&](const Echo&, const rpc::Call&, const rpc::Reply<Echoed>& r) { kept.push_back(r); });
    client->call<Echo>(Echo{"x"}, 5s, [](const Result<Echoed>&) {});
    CHECK(w.until([&] { return kept.size() == 1; }));
    w.server.reset();
    kept[0](Echoed{"to nobody"});
  }

  TEST_CASE("a client may be destroyed inside its own callback") {
    World w;
    w.server->on<Echo>(echo);
    auto client = w.client();
    int answers = 0;
    for (int i = 0; i < 10; ++i)
      client->call<Echo>(Echo{"x"}, 5s, [&](const Result<Echoed>&) {
        ++answers;
        client.reset();
      });
    CHECK(w.until([&] { return answers > 0; }));
    w.until([] { return false; }, 50ms);
    CHECK(answers == 1);
  }

  TEST_CASE("a thousand calls in flight each get their own answer") {
    World w;
    w.server->on<Echo>(echo);
    auto client = w.client();
    int right = 0, done = 0;
    for (int i = 0; i < 1000; ++i)
      client->call<Echo>(Echo{std::to_string(i)}, 10s, [&, i](const Result<Echoed>& r) {
        ++done;
        right += r && r->text == std::to_string(i);
      });
    CHECK(w.until([&] { return done == 1000; }));
    CHECK(right == 1000);
    CHECK(client->in_flight() == 0);
  }

  TEST_CASE("blocking clients may be shared by threads") {
    World w;
    w.server->on<Echo>(echo);
    auto client = rpc::SyncClient::connect(w.server->address(), w.clock);
    REQUIRE(client.has_value());
    std::atomic<int> right{0}, done{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          const std::string text = std::to_string(t * 1000 + i);
          auto r = (*client)->call(Echo{text}, 10s);
          right += r && r->text == text;
        }
        ++done;
      });
    CHECK(w.until([&] { return done == 4; }, 30s));
    for (auto& t : threads) t.join();
    CHECK(right == 200);
    auto nobody = rpc::SyncClient::connect("127.0.0.1:1", w.clock);
    REQUIRE(nobody.has_value());
    CHECK((*nobody)->call(Echo{"x"}, 50ms).error().code == Code::kUnavailable);
    auto nameless = rpc::SyncClient::connect("no.such..name.invalid:1", w.clock);
    REQUIRE(nameless.has_value());
    const auto none = (*nameless)->call(Echo{"x"}, 50ms);
    REQUIRE(!none);
    CHECK(none.error().code == Code::kUnavailable);
    CHECK_MESSAGE(none.error().what.find("its name had no address") != std::string::npos,
                  none.error().what);
  }

  TEST_CASE("a blocking call is a step of its caller's trace, and so is its answer") {
    struct Named : StepTrace {  // a trace whose id is its path
      std::string path;
      std::vector<std::string>& ended;
      Named(std::string p, std::vector<std::string>& e) : path(std::move(p)), ended(e) {}
      std::shared_ptr<StepTrace> begin(StepKind kind) override {
        const char* const mark = kind == StepKind::kCall ? "/call" : "/step";
        return std::make_shared<Named>(path + mark, ended);
      }
      std::string wire() const override { return path; }
      void end(const char* name, const StepFacts& facts) override {
        ended.push_back(path + " " + name + " " + facts.error);
      }
    };
    World w;
    w.server->on<Echo>(echo);
    std::vector<std::string> calls, answers;
    w.server->trace_calls([&](const std::string& trace_id) {
      return std::make_shared<Named>(trace_id + "/answer", answers);
    });
    auto client = rpc::SyncClient::connect(w.server->address(), w.clock);
    REQUIRE(client.has_value());
    std::atomic<bool> done{false};
    std::thread caller([&] {
      CHECK((*client)->call(Echo{"untraced"}, 10s));
      const StepScope scope(std::make_shared<Named>("request", calls));
      CHECK((*client)->call(Echo{"x"}, 10s));
      CHECK_FALSE((*client)->call(Echo{"busy"}, 10s));
      CHECK_FALSE((*client)->call(Unheard{}, 10s));
      done = true;
    });
    CHECK(w.until([&] { return done.load(); }, 30s));
    caller.join();
    CHECK(calls.size() == 3);
    CHECK(calls[0] == "request/call echo ");
    CHECK(calls[1] == "request/call echo come back later");
    CHECK(answers == std::vector<std::string>{"request/call/answer echo ",
                                              "request/call/answer echo come back later"});
  }

  TEST_CASE("a blocking call waits for another thread's no longer than its own budget") {
    World w;  // its loop does not turn: nobody answers
    auto client = rpc::SyncClient::connect(w.server->address(), w.clock);
    REQUIRE(client.has_value());
    std::atomic<bool> ended{false};
    std::thread longer([&] {
      (void)(*client)->call(Echo{"x"}, 30s);
      ended = true;
    });
    const auto refused = [&] {
      const auto r = (*client)->call(Echo{"y"}, 50ms);
      REQUIRE_FALSE(r.has_value());
      return r.error().code == Code::kTimeout &&
             r.error().what.find("other calls of this client") != std::string::npos;
    };
    const Time deadline = w.clock.now() + 20s;
    bool seen = false;
    while (!seen && w.clock.now() < deadline) seen = refused();
    CHECK(seen);
    CHECK_FALSE(ended);
    w.server->on<Echo>(echo);
    CHECK(w.until([&] { return ended.load(); }, 30s));
    longer.join();
  }

  TEST_CASE("a port in use and an address beyond loopback are refused, with the remedy") {
    World w;
    auto again = rpc::Server::open(w.loop, w.server->address(), w.metrics);
    REQUIRE_FALSE(again.has_value());
    CHECK(again.error().code == Code::kUnavailable);
    CHECK(again.error().what.find("another port") != std::string::npos);
    auto open = rpc::Server::open(w.loop, "0.0.0.0:0", w.metrics);
    REQUIRE_FALSE(open.has_value());
    CHECK(open.error().code == Code::kInvalid);
    CHECK(open.error().what.find("--cluster-key") != std::string::npos);
  }
}
