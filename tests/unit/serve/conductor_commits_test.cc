// Commits: a prompt's blocks are locked on its prefill worker until one comes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

#include "conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

TEST_CASE("a commit goes out before the next message to its worker") {
  Cluster c;
  Heard first, second;
  c.submit(first);
  REQUIRE(until(c.loop, [&] { return first.tokens.size() == 2; }));
  size_t committed = 0;
  c.p[0]->then = [&](const std::string& request) {
    committed = c.p[0]->committed.size();
    c.answer(request);
  };
  c.submit(second);
  REQUIRE(c.finish(second));
  CHECK(committed == 1);
}

// F74: its blocks stayed locked for the whole lease.
TEST_CASE("F74: a commit without an answer is sent again, until the worker knows no more of it") {
  Cluster c;
  FakePrefill& p = *c.p[0];
  p.commit_fails = Code::kUnavailable;
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(!heard.failed);
  REQUIRE(until(c.loop, [&] { return p.committed.size() == 3; }));
  CHECK(p.committed[1] == p.committed[0]);
  SUBCASE("it takes it") { p.commit_fails = Code{}; }
  SUBCASE("it took it before, or its lease is over") { p.commit_fails = Code::kNotFound; }
  const size_t sent = p.committed.size();
  REQUIRE(until(c.loop, [&] { return p.committed.size() > sent; }));
  const auto last = static_cast<std::ptrdiff_t>(p.committed.size());
  Heard second;  // what is to be sent again goes out before its messages
  c.submit(second);
  REQUIRE(c.finish(second));
  REQUIRE(until(c.loop, [&] { return p.committed.back() != p.committed[0]; }));
  CHECK(std::count(p.committed.begin(), p.committed.end(), p.committed[0]) == last);
}

TEST_CASE("a commit that the worker refuses is not sent again") {
  Cluster c;
  FakePrefill& p = *c.p[0];
  p.commit_fails = Code::kBusy;
  Heard first, second;
  c.submit(first);
  REQUIRE(c.finish(first));
  REQUIRE(until(c.loop, [&] { return p.committed.size() == 1; }));
  p.commit_fails = Code{};
  c.submit(second);
  REQUIRE(c.finish(second));
  REQUIRE(until(c.loop, [&] { return p.committed.size() == 2; }));
  CHECK(p.committed[1] != p.committed[0]);
}
