#include "serve/conductor/owed_aborts.h"

#include "tests/unit/serve/conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

TEST_CASE("aborts are owed to a process of that epoch until it confirms them") {
  OwedAborts owed;
  owed.owe({"d", 5, 1}, "a");
  owed.owe({"d", 5, 1}, "b");
  owed.owe({"d", 4, 1}, "of an older process");
  CHECK(owed.size() == 2);
  CHECK(owed.owed_to({"other", 5, 1}).empty());
  CHECK(owed.owed_to({"d", 4, 2}).empty());
  owed.confirmed({"d", 4, 1}, "a");
  CHECK(owed.owed_to({"d", 5, 2}) == std::vector<std::string>{"a", "b"});
  owed.confirmed({"d", 5, 2}, "a");
  owed.confirmed({"d", 5, 2}, "unknown");
  CHECK(owed.owed_to({"d", 5, 2}) == std::vector<std::string>{"b"});
  owed.owe({"d", 6, 1}, "c");
  CHECK(owed.owed_to({"d", 6, 1}) == std::vector<std::string>{"c"});
  CHECK(owed.owed_to({"d", 7, 1}).empty());
  CHECK(owed.size() == 0);
}

TEST_CASE("what is owed is bounded: the worker that was owed nothing new the longest loses it") {
  OwedAborts owed;
  owed.owe({"gone", 1, 1}, "a");
  owed.owe({"d", 1, 1}, "b");
  for (size_t i = owed.size(); i <= OwedAborts::kMax; ++i) owed.owe({"e", 1, 1}, std::to_string(i));
  CHECK(owed.size() == OwedAborts::kMax);
  CHECK(owed.owed_to({"gone", 1, 2}).empty());
  CHECK(owed.owed_to({"d", 1, 2}).size() == 1);
  CHECK(owed.owed_to({"e", 1, 2}).size() == OwedAborts::kMax - 1);
}

TEST_CASE("a decode worker that was away gets the aborts of what ended meanwhile") {
  for (const bool restarted : {false, true}) {
    CAPTURE(restarted);
    Cluster c(1, 1, quick());
    c.p[0]->silent = true;
    Heard heard;
    c.submit(heard);
    REQUIRE(until(c.loop, [&] { return c.p[0]->prefills.size() == 1; }));
    FakeDecode& d = *c.d[0];
    const std::string request = d.reserved.back().request;
    c.loop.cancel(d.timer);  // it stands still
    REQUIRE(c.finish(heard));
    REQUIRE(heard.failed);
    REQUIRE(until(c.loop, [&] { return c.conductor->not_ready() == "no decode worker"; }));
    CHECK(d.aborted.empty());
    if (restarted) d.me.epoch = 2;
    d.live();
    REQUIRE(d.tells());
    Heard next;  // reaches the worker behind what it was owed
    c.p[0]->silent = false;
    c.submit(next);
    REQUIRE(c.finish(next));
    CHECK(d.aborted.contains(request) == !restarted);
  }
}
