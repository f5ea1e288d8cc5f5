#include "sched/ledger.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace {
const Time t0{};
}

TEST_CASE("the wait is what was charged, less the elapsed part of the job that runs") {
  Ledger l;
  CHECK(l.wait_ms(t0) == 0);
  l.charge(1, 100, 1000, t0);
  l.charge(2, 50, 500, t0);
  CHECK(l.wait_ms(t0) == doctest::Approx(150));
  CHECK(l.wait_ms(t0 + 40ms) == doctest::Approx(110));
  CHECK(l.tokens() == 1500);
  CHECK(l.wait_ms(t0 + 500ms) == doctest::Approx(50));  // late: the second still has to run
  l.finish(1, t0 + 500ms);
  CHECK(l.wait_ms(t0 + 510ms) == doctest::Approx(40));
  l.finish(2, t0 + 550ms);
  l.finish(2, t0 + 550ms);
  CHECK(l.wait_ms(t0 + 550ms) == 0);
  CHECK(l.tokens() == 0);
}

TEST_CASE("a job that ends out of order takes only its own charge") {
  Ledger l;
  l.charge(1, 100, 1, t0);
  l.charge(2, 50, 1, t0);
  l.charge(3, 25, 1, t0);
  l.finish(2, t0 + 10ms);
  CHECK(l.wait_ms(t0 + 10ms) == doctest::Approx(90 + 25));
}

TEST_CASE("a job of whose end nobody tells ends as predicted, behind those before it") {
  Ledger l;
  l.charge(1, 100, 1000, t0);
  l.charge(2, 50, 500, t0);
  l.charge(3, 25, 250, t0);
  l.silent(2);
  l.silent(3);
  l.pass(t0 + 1s);  // the first is late: the others wait for it
  CHECK(l.jobs() == 3);
  l.finish(1, t0 + 1s);
  l.pass(t0 + 1s + 49ms);
  CHECK(l.jobs() == 2);
  l.pass(t0 + 1s + 60ms);
  CHECK(l.jobs() == 1);
  CHECK(l.wait_ms(t0 + 1s + 60ms) == doctest::Approx(15));
  CHECK(l.tokens() == 250);
  l.pass(t0 + 2s);
  CHECK(l.jobs() == 0);
  l.finish(3, t0 + 2s);
  CHECK(l.wait_ms(t0 + 2s) == 0);
}

TEST_CASE("the node's own answer corrects the wait, and the correction fades with time") {
  Ledger l;
  l.charge(1, 100, 1, t0);
  l.correct(1, 300, t0);  // others sent it work
  CHECK(l.wait_ms(t0) == doctest::Approx(400));
  CHECK(l.wait_ms(t0 + 50ms) == doctest::Approx(300));
  CHECK(l.wait_ms(t0 + 1s) == 0);
  l.finish(1, t0 + 1s);
  l.charge(2, 100, 1, t0 + 1s);
  l.charge(3, 10, 1, t0 + 1s);
  l.correct(3, 20, t0 + 1s);  // it is further than we thought
  CHECK(l.wait_ms(t0 + 1s) == doctest::Approx(30));
}

TEST_CASE("a node's answer speaks of the jobs that were sent there before, in whatever order") {
  Ledger l;
  for (uint64_t job = 1; job <= 4; ++job) l.charge(job, 100, 1, t0);
  l.sent(3);
  l.sent(1);
  l.sent(4);
  l.correct(3, 0, t0);  // as the first, it waits for none there
  CHECK(l.wait_ms(t0) == doctest::Approx(400));
  l.correct(1, 0, t0);
  CHECK(l.wait_ms(t0) == doctest::Approx(400));
  l.correct(4, 200, t0);  // the first and the third
  CHECK(l.wait_ms(t0) == doctest::Approx(400));
  l.sent(2);
  l.correct(2, 130, t0);  // the first, and 30 ms that we did not know of
  CHECK(l.wait_ms(t0) == doctest::Approx(430));
}

TEST_CASE(
    "a short job waits for shorter ones and for the one that runs, where short ones go first") {
  Ledger l;
  l.set_order({.srpf = true, .ageing = 0});
  l.charge(1, 1000, 1, t0);
  l.charge(2, 500, 1, t0);
  l.charge(3, 50, 1, t0);
  CHECK(l.wait_ms(t0) == doctest::Approx(1550));          // it comes last
  CHECK(l.wait_ms(t0, 100, 0) == doctest::Approx(1050));  // before the second, behind the third
  CHECK(l.wait_ms(t0, 10, 0) == doctest::Approx(1000));
  CHECK(l.wait_ms(t0, 600, 0) == doctest::Approx(1550));
  l.finish(1, t0 + 1s);  // the third runs now, not the second
  CHECK(l.wait_ms(t0 + 1s + 20ms, 10, 0) == doctest::Approx(30));
  l.finish(3, t0 + 1050ms);
  CHECK(l.wait_ms(t0 + 1050ms, 10, 0) == doctest::Approx(500));
  // The node's answer for the second, when the third was before it.
  Ledger n;
  n.set_order({.srpf = true, .ageing = 0});
  n.charge(1, 1000, 1, t0);
  n.charge(2, 500, 1, t0);
  n.charge(3, 50, 1, t0);
  n.correct(2, 1050, t0);
  CHECK(n.wait_ms(t0) == doctest::Approx(1550));
}

TEST_CASE("waiting counts, and priorities count for more") {
  Ledger l;
  l.set_order({.srpf = true, .ageing = 0.5});
  l.charge(1, 1000, 1, t0);
  l.charge(2, 500, 1, t0);
  CHECK(l.wait_ms(t0 + 500ms, 300, 0) == doctest::Approx(1000));  // 500 - 250 is before 300
  CHECK(l.wait_ms(t0 + 500ms, 200, 0) == doctest::Approx(500));
  CHECK(l.wait_ms(t0 + 500ms, 900, -1) == doctest::Approx(500));
  CHECK(l.wait_ms(t0 + 500ms, 1, 1) == doctest::Approx(1000));
  Ledger fcfs;
  fcfs.charge(1, 100, 1, t0);
  fcfs.charge(2, 200, 1, t0, 5);
  fcfs.charge(3, 400, 1, t0, 0);
  CHECK(fcfs.wait_ms(t0, 1, 0) == doctest::Approx(500));
  fcfs.finish(1, t0 + 100ms);  // the third has the lower number
  CHECK(fcfs.wait_ms(t0 + 100ms, 1, -1) == doctest::Approx(400));
}

TEST_CASE("jobs are in the order of arrival again when the last one with a priority is gone") {
  Ledger l;
  CHECK_FALSE(l.overtakes());
  l.charge(1, 100, 1, t0);
  l.charge(2, 100, 1, t0, 5);
  CHECK(l.overtakes());
  l.finish(1, t0);
  CHECK(l.overtakes());
  l.finish(2, t0);
  CHECK_FALSE(l.overtakes());
}

TEST_CASE("a correction says how far ahead the node is, and until when") {
  Ledger l;
  l.charge(1, 100, 1, t0);
  l.charge(2, 100, 1, t0);
  l.correct(2, 70, t0);
  CHECK(l.ahead(t0) == 30ms);
  CHECK(l.ahead(t0 + 10ms) == 20ms);
  CHECK(l.corrected_until() == t0 + 30ms);
  CHECK_FALSE(l.corrected(l.corrected_until()));
  l.correct(2, 120, t0);
  CHECK(l.ahead(t0) == 0ms);
  CHECK(l.corrected_until() == t0 + 20ms);
}

TEST_CASE("where the node chooses anew at each chunk, an urgent job waits for one chunk") {
  Ledger l;
  l.set_order({.srpf = false, .ageing = 0, .chunk_tokens = 1000});
  l.charge(1, 12'800, 128'000, t0, 1);
  CHECK(l.wait_ms(t0 + 1s, 10, 1) == doctest::Approx(11'800));  // its equal
  CHECK(l.wait_ms(t0 + 1s, 10, 0) == doctest::Approx(100));     // a chunk of it
  l.charge(2, 10, 100, t0 + 1s, 0);
  CHECK(l.wait_ms(t0 + 1s, 10, 0) == doctest::Approx(110));
  l.correct(2, 100, t0 + 1s);  // as the node says, too
  CHECK(l.wait_ms(t0 + 1s) == doctest::Approx(11'810));
  l.finish(2, t0 + 1100ms);  // the first waited meanwhile
  CHECK(l.wait_ms(t0 + 1100ms) == doctest::Approx(11'710));
  Ledger srpf;
  srpf.set_order({.srpf = true, .ageing = 0, .chunk_tokens = 1000});
  srpf.charge(1, 1000, 10'000, t0);
  CHECK(srpf.wait_ms(t0, 10, 0) == doctest::Approx(100));
  CHECK(srpf.wait_ms(t0 + 950ms, 100, 0) == doctest::Approx(50));  // it has less left
}

TEST_CASE("what others gave the node goes before, and fades as time passes") {
  Ledger l;
  l.tell_others(200, t0);
  CHECK(l.wait_ms(t0 + 50ms) == doctest::Approx(150));
  CHECK(l.wait_ms(t0 + 1s) == 0);
  l.charge(1, 100, 1, t0 + 50ms);
  CHECK(l.wait_ms(t0 + 50ms) == doctest::Approx(250));
  l.correct(1, 150, t0 + 50ms);  // as known
  CHECK(l.wait_ms(t0 + 50ms) == doctest::Approx(250));
  l.tell_others(0, t0 + 60ms);
  CHECK(l.wait_ms(t0 + 60ms) == doctest::Approx(90));
  l.tell_others(30, t0 + 60ms);
  l.finish(1, t0 + 80ms);
  CHECK(l.wait_ms(t0 + 80ms) == doctest::Approx(10));
  l.tell_others(-1, t0 + 80ms);  // no time
  CHECK(l.wait_ms(t0 + 100ms) == 0);
}
