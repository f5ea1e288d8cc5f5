#include "serve/external/outliers.h"

#include <doctest/doctest.h>

#include "serve/external/answer_events.h"

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;

namespace outliers_test {
namespace {

// Fails until it is to be ejected.
int fail_until_failing(OutlierWatch& w, Time now) {
  int n = 0;
  while (!w.failing()) {
    w.answered(false, now);
    REQUIRE(++n <= 10);
  }
  return n;
}

}  // namespace

TEST_CASE("an engine fails when five of its last ten answers did") {
  OutlierWatch w;
  const Time now{1h};
  CHECK(fail_until_failing(w, now) == 5);
  OutlierWatch mixed;
  for (int i = 0; i < 40; ++i) {
    mixed.answered(i % 5 != 0 && i % 5 != 2, now);  // four of ten
    CHECK_FALSE(mixed.failing());
  }
  mixed.answered(false, now);
  mixed.answered(false, now);
  CHECK(mixed.failing());
}

TEST_CASE("it is ejected for ever longer, and for a second again after ten good answers") {
  OutlierWatch w;
  Time now{1h};
  for (const Duration out : {1s, 2s, 4s, 8s, 16s, 30s, 30s}) {
    fail_until_failing(w, now);
    w.eject(now);
    CHECK(w.ejected(now));
    CHECK(w.ejected(now + out - 1ms));
    CHECK_FALSE(w.ejected(now + out));
    for (int i = 0; i < 20; ++i) w.answered(false, now);  // of requests sent before
    now += out;
    CHECK_FALSE(w.failing());
  }
  CHECK(w.ejections() == 7);
  for (int i = 0; i < 9; ++i) w.answered(true, now);
  w.answered(false, now);
  for (int i = 0; i < 10; ++i) w.answered(true, now);
  fail_until_failing(w, now);
  w.eject(now);
  CHECK(w.until() == now + 1s);
}

TEST_CASE("a stream's events are counted wherever it is cut, and its comments are none") {
  const std::string stream =
      ": keep\n\nevent: data: {\r\ndata: {\"a\":\"data: {\"}\r\n\r\ndata:{}\n\ndata: [DONE]\n\n"
      "data:   {\"x\":1}\n\ndat: {\n";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    AnswerEvents e;
    uint32_t all = 0;
    for (size_t at = 0; at < stream.size(); at += piece) all += e.pass(stream.substr(at, piece));
    CHECK(all == 3);
  }
}

}  // namespace outliers_test
