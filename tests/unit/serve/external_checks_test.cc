// What an external engine answers to checks: within limits, and checks come ever later while it is
// wrong.
#include <doctest/doctest.h>

#include "base/json.h"
#include "http/server.h"
#include "serve/external/external_engines.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;
using http::testing::wait_until;

namespace external_checks_test {
namespace {

struct Checked {
  Checked() {
    server = *http::Server::open(loop, "127.0.0.1:0", {}, [this](const http::Exchange& x) {
      ++asked;
      x.reply(status, "application/json", answer);
    });
    ExternalOptions o;
    o.name = "e";
    o.url = "http://" + server->address();
    REQUIRE(engines.add(o));
    settle();
  }
  const ExternalEngine& engine() { return *engines.find("e"); }
  void settle() {
    REQUIRE(wait_until(loop, [&] { return !engine().checking; }));
  }
  // Whether a check comes, `later` than it was checked last.
  bool asked_after(Duration later) {
    engines.tick(engine().checked + later);
    const bool asks = engine().checking;
    settle();
    return asks;
  }

  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  sched::PrefixIndex index;
  ExternalEngines engines{loop, index, {[] { return 0; }, [](auto) {}}, "tiny", 1000, metrics};
  std::string answer;
  int status = 200, asked = 0;
  std::unique_ptr<http::Server> server;
};

const char* const kServes = R"({"data":[{"id":"tiny"}]})";

}  // namespace

TEST_CASE("F8: an engine that answers wrongly is checked at growing intervals") {
  Checked c;  // its first answer is no JSON
  for (const Duration wait : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    CHECK_FALSE(c.asked_after(wait - 1ms));
    CHECK(c.asked_after(wait));
  }
  CHECK_FALSE(c.engine().up);
  c.answer = kServes;
  CHECK(c.asked_after(60s));
  CHECK(c.engine().up);
  CHECK(c.asked_after(1s));  // of its health, each second again
  c.status = 503;            // it is busy, or starts again: nothing wrong
  CHECK(c.asked_after(1s));
  CHECK(c.engine().up);  // one check alone may be late
  CHECK(c.asked_after(0s));
  CHECK_FALSE(c.engine().up);
  CHECK(c.asked_after(1s));
}

TEST_CASE("F8: a list of models has a limit of bytes and of members") {
  Checked c;
  c.answer = "{";
  for (int i = 0; c.answer.size() < 200'000; ++i) c.answer += "\"key" + std::to_string(i) + "\":1,";
  c.answer += "\"data\":[{\"id\":\"tiny\"}]}";
  CHECK(c.asked_after(60s));
  CHECK(c.engine().why.find("more than 1024 members") != std::string::npos);
  c.answer = std::string(1 << 20, ' ') + kServes;
  CHECK(c.asked_after(60s));
  CHECK(c.engine().why.find("the body is over 256KiB") != std::string::npos);
  c.answer = std::string(100'000, ' ') + kServes;
  CHECK(c.asked_after(60s));
  CHECK(c.engine().up);
  CHECK(c.asked_after(60s));  // 64 KiB are enough for what an engine says of its health
  CHECK_FALSE(c.engine().up);
}

}  // namespace external_checks_test
