// Engines that are full, fail, hang, drip or lie: the request goes elsewhere before the first byte
// of an answer, ends with a word after it, and who fails often is left out for a while.
#include <doctest/doctest.h>

#include "base/json.h"
#include "mixed_site.h"
#include "odd_engine.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_faults_test {
namespace {

// A text that has nothing to do with others.
std::string body_of(int i, const char* more = "") {
  return strf(R"({"model":"tiny","prompt":[%d,%d,%d]%s})", i, i + 1, i + 2, more);
}
const char* const kStreamed = R"(,"stream":true)";

struct Odd {
  explicit Odd(bool other = true, Duration token_timeout = 1s) : m(options(token_timeout), false) {
    if (other) m.engine("well").delay = 1ms;
    odd = std::make_unique<OddEngine>(m.loop);
    REQUIRE(m.administer("/register", odd->registration("odd")).status == 200);
    REQUIRE(until(m.loop, [&] { return m.conductor->external().find("odd")->up; }));
  }
  static ConductorOptions options(Duration token_timeout) {
    ConductorOptions o = quick();
    o.policy.policy = "rr";  // the odd one gets its turn
    o.prefill_timeout = o.token_timeout = token_timeout * kSlow;
    o.answer_timeout = 5 * o.prefill_timeout;
    return o;
  }
  // Until the odd one was asked.
  Mixed::Answer ask(const char* more = "") {
    const int before = odd->asked;
    for (int i = 0; i < 4; ++i) {
      const auto r = m.ask("/v1/completions", body_of(++sent * 10, more));
      if (odd->asked > before) return r;
      CHECK(r.status == 200);
    }
    FAIL("it was never asked");
    return {};
  }
  Mixed m;
  std::unique_ptr<OddEngine> odd;
  int sent = 0;
};

}  // namespace

TEST_CASE("an engine that is full is passed over; when all are, its own words are the answer") {
  Mixed m(false);
  MockEngine& a = m.engine("a");
  MockEngine& b = m.engine("b");
  for (const int status : {429, 503}) {
    a.status = b.status = status;
    a.answer_headers = b.answer_headers = {{"Retry-After", "7"}};
    const size_t before = a.came.size() + b.came.size();
    const auto r = m.ask("/v1/completions", body_of(status));
    CHECK(r.status == status);
    CHECK(r.body.find("the mock says no") != std::string::npos);
    CHECK(r.headers.at("retry-after") == "7");
    CHECK(a.came.size() + b.came.size() == before + 2);
    b.status = 200;
    CHECK(m.ask("/v1/completions", body_of(status)).status == 200);
  }
  a.answer_headers = b.answer_headers = {};
  a.status = b.status = 429;
  CHECK(m.ask("/v1/completions", body_of(3)).headers.at("retry-after") == "1");
  CHECK(m.ask("/metrics").body.find(R"(code="429",reason="status_429"} 2)") != std::string::npos);
  CHECK((*parse_json(m.ask("/explain/mine").body))["outcome"]["status"] == 429);
}

TEST_CASE("what fails before the first byte of an answer goes to another engine") {
  Odd o;
  const std::string body(100, ' ');
  const std::string json = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
  const std::string kinds[] = {
      "",                                                           // closes at once
      "HTTP/1.1 200 OK\r\nContent-Le",                              // in its head
      json + "Content-Length: 100\r\n\r\n",                         // before its body
      json + "Content-Length: -5\r\n\r\nabc",                       // lies
      json + "Content-Length: 99999999999999999999999\r\n\r\nabc",  // lies
      json + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",   // twice
      json + "Content-Length: 0\r\n\r\n",                           // says nothing
      json + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",         // no chunk
      "HTTP/1.1 302 Found\r\nLocation: http://x\r\nContent-Length: 0\r\n\r\n",
      "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
      "nonsense\r\n\r\n",
      std::string("\0\1\2", 3) + "\r\n\r\n",
      json + "X: " + std::string(70'000, 'x') + "\r\n\r\n",
  };
  o.odd->closes = true;
  for (const std::string& kind : kinds) {
    const std::string shown = kind.substr(0, 100);
    CAPTURE(shown);
    // Ejection is tested elsewhere.
    auto& engine = *o.m.conductor->external().find("odd");
    engine.outliers = OutlierWatch();
    o.odd->answer = kind;
    const auto r = o.ask();
    CHECK(r.status == 200);
    CHECK(r.headers.at("x-mc-prefill") == "well");
    CHECK(engine.outliers.failed() == 1);
    CHECK(engine.requests == 0);
  }
}

TEST_CASE("an answer longer than its length is cut there, and the connection is not used again") {
  Odd o;
  o.odd->answer = OddEngine::whole("application/json", R"({"choices":[]})") + "{\"more\":1}";
  const auto r = o.ask();
  CHECK(r.status == 200);
  CHECK(r.body == R"({"choices":[]})");
  o.odd->answer = OddEngine::whole("application/json", R"({"n":2})");
  CHECK(o.ask().body == R"({"n":2})");
}

TEST_CASE("an answer that ends in its middle is not passed off as whole") {
  Odd o(false);
  o.odd->closes = true;
  o.odd->answer =
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"half";
  const auto cut = o.ask();
  CHECK(cut.error);
  o.odd->answer =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n"
      "data: {\"a\":1}\n\n";
  const auto stream = o.ask(kStreamed);
  CHECK(stream.status == 200);
  CHECK(stream.body.find("data: {\"error\":{") != std::string::npos);
  CHECK(stream.body.find("[DONE]") == std::string::npos);
  CHECK(o.m.conductor->external().find("odd")->outliers.failed() == 2);
}

TEST_CASE("a refusal that is cut is not passed off as whole, and goes to nobody else") {
  Odd o;
  o.odd->closes = true;
  o.odd->answer =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
      "{\"half";
  for (const char* more : {"", kStreamed}) {
    const auto cut = o.ask(more);
    CHECK(cut.status == 400);
    CHECK(cut.error);
    CHECK(cut.body == "{\"half");
  }
}

TEST_CASE("a stream that is cut within a line ends with an error event of its own") {
  Odd o(false);
  o.odd->closes = true;
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000000\r\n\r\n";
  const std::string event = "data: {\"a\":1}\n\n", error = "data: {\"error\":{";
  const std::pair<std::string, std::string> table[] = {
      {event, event + error},
      {event + "data: {\"b", event + error},  // no client could read it
      {event + "event: x\ndata: {}\n", event + "event: x\ndata: {}\n\n" + error},
      {event + "event: x\ndata: {}\nid", event + "event: x\ndata: {}\n\n" + error},
      {"data: {}\r\n\r\n", "data: {}\r\n\r\n" + error},
      {"data: {}\r\n", "data: {}\r\n\n" + error},
      {"data: {}\r", "data: {}\r\n\n" + error}};
  for (const auto& row : table) {
    o.m.conductor->external().find("odd")->outliers = OutlierWatch();
    o.odd->answer = head + row.first;
    const auto r = o.ask(kStreamed);
    CHECK(r.status == 200);
    CHECK_FALSE(r.error);
    CHECK(r.body.substr(0, row.second.size()) == row.second);
  }
  o.odd->answer = head + event + "data: " + std::string(200'000, 'x');  // nobody holds that back
  CHECK(o.ask(kStreamed).body.find("xx\n\n" + error) != std::string::npos);
  // The engine does not stream it, though the client asked for that.
  o.odd->answer =
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"b";
  const auto json = o.ask(kStreamed);
  CHECK(json.error);
  CHECK(json.body == "{\"b");
}

TEST_CASE("a stream whose last line has no end comes whole") {
  Odd o(false);
  o.odd->answer = OddEngine::whole("text/event-stream", "data: {}\n\ndata: [DONE]");
  const auto r = o.ask(kStreamed);
  CHECK(r.body == "data: {}\n\ndata: [DONE]");
  CHECK_FALSE(r.error);
}

TEST_CASE("an engine that says nothing, or a byte now and then, is given up") {
  Odd o(true, 300ms);
  o.odd->answer = "";  // hangs
  CHECK(o.ask(kStreamed).headers.at("x-mc-prefill") == "well");
  o.odd->drips = o.odd->drips_head = true;  // its head, for longer than that
  o.odd->answer = "HTTP/1.1 200 OK\r\nX: " + std::string(2000, 'x') + "\r\n\r\n";
  CHECK(o.ask(kStreamed).headers.at("x-mc-prefill") == "well");
  // Comments keep a stream open, but are no tokens.
  o.odd->drips_head = false;
  o.odd->again = true;
  o.odd->answer = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:";
  const auto stream = o.ask(kStreamed);
  CHECK(stream.body.find("upstream_timeout") != std::string::npos);
  o.odd->answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{";
  CHECK(o.ask().error);
}

TEST_CASE("an answer that is no stream is waited for beyond --prefill-timeout") {
  Odd o(true, 600ms);  // an answer has five times as long
  auto& engine = *o.m.conductor->external().find("odd");
  o.odd->answer = "";  // hangs
  const auto late = o.ask();
  CHECK(late.status == 504);
  CHECK(late.body.find("--answer-timeout") != std::string::npos);
  CHECK(engine.outliers.failed() == 0);
}

TEST_CASE("an engine whose answers fail is ejected, and shown so; half of a model's stay") {
  Mixed m(false);
  std::vector<MockEngine*> all;
  for (const char* name : {"a", "b", "c", "d"}) all.push_back(&m.engine(name));
  auto& engines = m.conductor->external();
  const auto fails = [&](const char* name) {
    for (int i = 0; i < 5; ++i) engines.answered(*engines.find(name), false, m.loop.now());
  };
  fails("a");
  CHECK(engines.find("a")->outliers.ejected(m.loop.now()));
  all[0]->delay = 0ms;
  for (int i = 0; i < 8; ++i) m.ask("/v1/completions", body_of(10 * i));
  CHECK(all[0]->came.empty());
  const auto nodes = (*parse_json(m.ask("/cluster").body))["nodes"];
  CHECK(nodes[0]["ejected"] == true);
  CHECK(nodes[0]["up"] == true);
  CHECK(nodes[1]["ejected"] == false);
  const std::string text = m.ask("/metrics").body;
  CHECK(text.find("mc_conductor_engine_ejections_total{engine=\"a\"} 1") != std::string::npos);
  CHECK(text.find("mc_conductor_engine_ejections_total{engine=\"b\"} 0") != std::string::npos);
  CHECK(text.find("mc_conductor_engines_ejected 1") != std::string::npos);
  fails("b");
  CHECK(engines.ejected(m.loop.now()) == 2);
  fails("c");
  CHECK(engines.ejected(m.loop.now()) == 2);  // the rest has to do the work
  REQUIRE(until(m.loop, [&] { return engines.ejected(m.loop.now()) == 0; }));
  for (int i = 0; i < 40 && all[0]->came.empty(); ++i)
    m.ask("/v1/completions", body_of(1000 + 10 * i));
  CHECK_FALSE(all[0]->came.empty());
}

TEST_CASE("one engine alone is never ejected, nor is the last that is up") {
  Mixed m(false);
  MockEngine& only = m.engine("a");
  auto& engines = m.conductor->external();
  for (int i = 0; i < 20; ++i) engines.answered(*engines.find("a"), false, m.loop.now());
  CHECK(engines.ejected(m.loop.now()) == 0);
  MockEngine& other = m.engine("b");
  other.well = false;
  REQUIRE(until(m.loop, [&] { return !engines.find("b")->up; }));
  engines.answered(*engines.find("a"), false, m.loop.now());
  CHECK(engines.ejected(m.loop.now()) == 0);
  only.status = 500;
  CHECK(m.ask("/v1/completions", body_of(1)).status == 503);
}

TEST_CASE("failed answers of real requests eject an engine; a client's errors do not") {
  Mixed m(false);
  MockEngine& a = m.engine("a");
  m.engine("b");
  a.status = 400;
  auto& watch = m.conductor->external().find("a")->outliers;
  for (int i = 0; i < 12; ++i) m.ask("/v1/completions", body_of(10 * i));
  CHECK(watch.failed() == 0);
  a.status = 500;
  for (int i = 0; i < 40 && watch.ejections() == 0; ++i)
    CHECK(m.ask("/v1/completions", body_of(1000 + 10 * i)).status == 200);
  CHECK(watch.ejections() == 1);
}

}  // namespace external_faults_test
