#include "trace/play/player.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "support.h"

namespace mc::trace {
namespace {

using namespace std::chrono_literals;

Trace every_second(size_t n) {
  Trace t;
  for (size_t i = 0; i < n; ++i) {
    TraceRequest r = prompt({i});
    r.timestamp_ms = 1000 * i;
    t.records.push_back(r);
  }
  return t;
}

TEST_CASE("recorded times are divided by the speed") {
  const Trace t = every_second(4);
  const auto plan = schedule(t, {.speed = 4});
  REQUIRE(plan);
  REQUIRE(plan->size() == 4);
  CHECK((*plan)[3].due == 750ms);
  CHECK((*plan)[3].record == &t.records[3]);
  CHECK((*schedule(t, {.speed = 0}))[3].due == 0ns);
}

TEST_CASE("a window is shifted to zero and keeps the requests' ids") {
  const Trace t = every_second(10);
  PlayOptions o;
  REQUIRE(parse_window("2.5:6", o));
  o.limit = 2;
  const auto plan = schedule(t, o);
  REQUIRE(plan);
  REQUIRE(plan->size() == 2);
  CHECK((*plan)[0].id == 3);
  CHECK((*plan)[0].due == 500ms);
  REQUIRE(parse_window("8:", o));
  CHECK(schedule(t, o)->size() == 2);
  REQUIRE(parse_window(":1", o));
  for (const char* wrong : {"http://", "5", "[]:1", "1:x"})
    CHECK(parse_window(wrong, o).error().what.find("window '" + std::string(wrong)) == 0);
  CHECK(schedule(t, o)->size() == 1);
}

TEST_CASE("Poisson arrivals have the given rate, and the seed decides them") {
  const Trace t = every_second(20000);
  const auto a = schedule(t, {.arrival = Arrival::kPoisson, .qps = 50, .seed = 1});
  const auto b = schedule(t, {.qps = 50, .seed = 1});  // a rate alone means Poisson
  const auto c = schedule(t, {.qps = 50, .seed = 2});
  REQUIRE((a && b && c));
  CHECK(a->back().due == b->back().due);
  CHECK(a->back().due != c->back().due);
  CHECK(to_seconds(a->back().due) == doctest::Approx(400).epsilon(0.03));
  double squares = 0;
  for (size_t i = 1; i < a->size(); ++i) {
    const double gap = to_seconds((*a)[i].due - (*a)[i - 1].due) * 50;
    squares += (gap - 1) * (gap - 1);
  }
  CHECK(std::sqrt(squares / 19999) == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("gamma arrivals have the given rate and coefficient of variation") {
  const Trace t = every_second(20000);
  PlayOptions o{.qps = 50, .seed = 3};
  REQUIRE(parse_arrival("gamma:2", o));
  const auto plan = schedule(t, o);
  REQUIRE(plan);
  CHECK(to_seconds(plan->back().due) == doctest::Approx(400).epsilon(0.05));
  double squares = 0;
  for (size_t i = 1; i < plan->size(); ++i) {
    const double gap = to_seconds((*plan)[i].due - (*plan)[i - 1].due) * 50;
    squares += (gap - 1) * (gap - 1);
  }
  CHECK(std::sqrt(squares / 19999) == doctest::Approx(2).epsilon(0.1));
}

TEST_CASE("uniform arrivals are evenly spaced from zero") {
  const Trace t = every_second(3);
  const auto plan = schedule(t, {.arrival = Arrival::kUniform, .qps = 10});
  REQUIRE(plan);
  CHECK((*plan)[0].due == 0ns);
  CHECK((*plan)[2].due == 200ms);
}

TEST_CASE("invalid options are refused") {
  const Trace t = every_second(3);
  PlayOptions o;
  CHECK(!schedule(t, {.speed = -1}));
  CHECK(!schedule(t, {.speed = std::nan("")}));
  CHECK(!schedule(t, {.speed = 1e-300}));
  CHECK(!schedule(t, {.arrival = Arrival::kPoisson}));
  CHECK(!schedule(t, {.arrival = Arrival::kUniform, .qps = -2}));
  CHECK(!schedule(t, {.speed = 2, .qps = 2}));
  CHECK(!schedule(t, {.window_from_s = 100}));
  CHECK(!parse_window("5", o));
  CHECK(!parse_window("5:5", o));
  CHECK(!parse_window("-1:5", o));
  CHECK(!parse_window("a:b", o));
  CHECK(!parse_arrival("sometimes", o));
  CHECK(!parse_arrival("gamma:0", o));
  CHECK(!parse_arrival("gamma:", o));
  for (const char* cv : {"gamma:1e-170", "gamma:1e200", "gamma:nan"}) CHECK(!parse_arrival(cv, o));
}

TEST_CASE("gamma arrivals of the smallest and the largest CV come to an end") {
  for (const char* cv : {"gamma:1e-6", "gamma:1e6"}) {
    PlayOptions o{.qps = 10};
    REQUIRE(parse_arrival(cv, o));
    CHECK(schedule(every_second(100), o));
  }
}

TEST_CASE("prompts have exact lengths, tokens of the vocabulary, and follow their ids") {
  const auto prompts = Prompts::make({.seed = 5, .vocab = 512});
  REQUIRE(prompts);
  const auto a = prompts->tokens(prompt({0, 1, 2}, 100));
  const auto b = prompts->tokens(prompt({0, 1, 3}));
  CHECK(a.size() == 3 * 512 - 100);
  CHECK(b.size() == 3 * 512);
  for (const int32_t t : b) CHECK((t >= 0 && t < 512));
  CHECK(std::equal(a.begin(), a.begin() + 1024, b.begin()));
  CHECK(!std::equal(a.begin() + 1024, a.end(), b.begin() + 1024));
  CHECK(prompts->tokens(prompt({0, 1, 2}, 100)) == a);
  CHECK(Prompts::make({.seed = 6, .vocab = 512})->tokens(prompt({0, 1, 2}, 100)) != a);
}

TEST_CASE("two ids never give the same block, even in a vocabulary of two tokens") {
  for (const uint64_t vocab : {2u, 3u, 256u, 32000u, 151936u}) {
    CAPTURE(vocab);
    const auto prompts = Prompts::make({.seed = 1, .vocab = vocab});
    REQUIRE(prompts);
    std::set<std::vector<int32_t>> blocks_seen;
    // Ids that differ in one high or low bit, and dense ones.
    std::vector<uint64_t> ids;
    for (uint64_t i = 0; i < 1000; ++i) ids.push_back(i);
    for (uint64_t bit = 10; bit < 64; ++bit) ids.push_back(uint64_t{1} << bit);
    ids.push_back(UINT64_MAX);
    for (const uint64_t id : ids) blocks_seen.insert(prompts->tokens(prompt({id}, 512 - 64)));
    CHECK(blocks_seen.size() == ids.size());  // the first 64 tokens spell the id
  }
}

TEST_CASE("a block too short to hold an id is refused") {
  CHECK(!Prompts::make({.vocab = 1}));
  CHECK(!Prompts::make({.vocab = 1ull << 40}));
  CHECK(!Prompts::make({.vocab = 2, .block_tokens = 63}));
  CHECK(Prompts::make({.vocab = 512, .block_tokens = 16}));
}

}  // namespace
}  // namespace mc::trace
