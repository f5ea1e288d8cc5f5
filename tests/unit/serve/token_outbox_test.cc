// F5: tokens that a conductor did not take are kept and sent again; virtual time.
#include "serve/worker/token_outbox.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;

namespace {

TokenUpdate tokens_of(const std::string& request, std::vector<int32_t> tokens,
                      const std::string& finish = "") {
  TokenUpdate u;
  u.request = request;
  u.tokens = std::move(tokens);
  u.finish = finish;
  return u;
}

constexpr TokenOutboxOptions kOptions{.retry = 1s, .patience = 10s, .in_flight_max = 3};

Time at(Duration d) { return Time(d); }

using List = std::vector<int32_t>;

}  // namespace

TEST_CASE("each message says the number of its first token, and an end is sent once") {
  TokenOutbox box(kOptions);
  CHECK_FALSE(box.next(at(1s)).has_value());
  box.add(tokens_of("a", {7}));
  const auto first = box.next(at(1s));
  REQUIRE(first.has_value());
  CHECK(first->updates.at(0).first == 1);
  CHECK(first->updates.at(0).tokens == List{7});
  CHECK_FALSE(box.next(at(1s)).has_value());
  box.add(tokens_of("a", {8, 9}, "length"));
  const auto second = box.next(at(1s));  // the first is not answered yet
  REQUIRE(second.has_value());
  CHECK(second->updates.at(0).first == 2);
  CHECK(second->updates.at(0).tokens == List{8, 9});
  CHECK(second->updates.at(0).finish == "length");
  box.taken(first->id);
  CHECK_FALSE(box.empty());
  box.taken(second->id);
  CHECK(box.empty());
  CHECK_FALSE(box.next(at(1s)).has_value());
}

TEST_CASE("an update without tokens says once that its request lives") {
  TokenOutbox box(kOptions);
  box.add(tokens_of("a", {7}));
  box.taken(box.next(at(1s)).value().id);
  box.add(tokens_of("a", {}));
  const auto alive = box.next(at(2s));
  REQUIRE(alive.has_value());
  CHECK(alive->updates.at(0).first == 2);  // no token is missing before it
  CHECK(alive->updates.at(0).tokens.empty());
  CHECK(alive->updates.at(0).finish.empty());
  CHECK_FALSE(box.next(at(2s)).has_value());
  box.taken(alive->id);
  box.add(tokens_of("a", {8}, "stop"));
  const auto last = box.next(at(3s));
  REQUIRE(last.has_value());
  CHECK(last->updates.at(0).first == 2);
  box.taken(last->id);
  CHECK(box.empty());
}

TEST_CASE("tokens of lost messages are sent again with those since, once a while") {
  TokenOutbox box(kOptions);
  std::vector<uint64_t> lost;
  for (int32_t t = 0; t < 3; ++t) {
    box.add(tokens_of("a", {t}));
    lost.push_back(box.next(at(1s)).value().id);
  }
  box.add(tokens_of("a", {3}));
  box.add(tokens_of("b", {4}, "stop"));
  CHECK_FALSE(box.next(at(1s)).has_value());  // enough is in flight
  for (const uint64_t id : lost) {
    box.lost(id, at(3s));
    CHECK(box.failing());
    CHECK_FALSE(box.next(at(3s)).has_value());  // not at once
  }
  auto again = box.next(at(4s));
  REQUIRE(again.has_value());
  REQUIRE(again->updates.size() == 2);
  CHECK(again->updates[0].first == 1);
  CHECK(again->updates[0].tokens == List{0, 1, 2, 3});
  CHECK(again->updates[1].tokens == List{4});
  CHECK(again->updates[1].finish == "stop");
  box.add(tokens_of("a", {5}));
  CHECK_FALSE(box.next(at(9s)).has_value());  // one at a time until one is taken
  box.lost(again->id, at(9s));
  again = box.next(at(10s));
  REQUIRE(again.has_value());
  CHECK(again->updates[0].tokens == List{0, 1, 2, 3, 5});
  CHECK(again->updates[1].finish == "stop");
  box.taken(again->id);
  CHECK_FALSE(box.failing());
  CHECK_FALSE(box.next(at(10s)).has_value());
  box.add(tokens_of("a", {6}, "length"));
  const auto last = box.next(at(10s));
  REQUIRE(last.has_value());
  CHECK(last->updates.at(0).first == 6);
  box.taken(last->id);
  CHECK(box.empty());
}

TEST_CASE("an answer that came late and one that was dropped change nothing") {
  TokenOutbox box(kOptions);
  box.add(tokens_of("a", {1}));
  const uint64_t one = box.next(at(1s)).value().id;
  box.add(tokens_of("a", {2}));
  const uint64_t two = box.next(at(1s)).value().id;
  box.taken(two);  // stands for all before it
  box.lost(one, at(2s));
  CHECK_FALSE(box.next(at(5s)).has_value());
  box.taken(one);
  box.add(tokens_of("a", {3}));
  const auto three = box.next(at(5s));
  REQUIRE(three.has_value());
  CHECK(three->updates.at(0).first == 3);
  box.drop("a");
  box.lost(three->id, at(6s));
  CHECK(box.empty());
  CHECK_FALSE(box.next(at(9s)).has_value());
}

TEST_CASE("a message holds a bounded number of tokens, and an end only with the last") {
  TokenOutbox box({.retry = 1s, .patience = 10s, .in_flight_max = 9, .tokens_max = 4});
  box.add(tokens_of("a", {1, 2, 3, 4, 5, 6}, "length"));
  box.add(tokens_of("b", {7}));
  const auto one = box.next(at(1s)), two = box.next(at(1s));
  REQUIRE(one.has_value());
  REQUIRE(two.has_value());
  CHECK(one->updates.at(0).tokens == List{1, 2, 3, 4});
  CHECK(one->updates.at(0).finish == "");
  CHECK(two->updates.at(0).first == 5);
  CHECK(two->updates.at(0).tokens == List{5, 6});
  CHECK(two->updates.at(0).finish == "length");
  CHECK(two->updates.at(1).tokens == List{7});
  CHECK_FALSE(box.next(at(1s)).has_value());
}

TEST_CASE("logprobs go with their tokens, also when these are sent again or in parts") {
  TokenOutbox box({.retry = 1s, .patience = 10s, .in_flight_max = 9, .tokens_max = 2});
  const auto add = [&](int32_t token, double logprob) {
    TokenUpdate u = tokens_of("a", {token});
    u.logprobs = {{.logprob = logprob}};
    box.add(std::move(u));
  };
  const auto said = [](const TokenOutbox::Message& m) {
    std::vector<double> all;
    for (const TokenLogprobs& l : m.updates.at(0).logprobs) all.push_back(l.logprob);
    return all;
  };
  add(1, -1);
  const auto one = box.next(at(1s));
  REQUIRE(one.has_value());
  CHECK(said(*one) == std::vector<double>{-1});
  add(2, -2);
  add(3, -3);
  const auto two = box.next(at(1s));
  REQUIRE(two.has_value());
  CHECK(said(*two) == std::vector<double>{-2, -3});
  box.taken(one->id);
  box.lost(two->id, at(2s));
  add(4, -4);
  const auto again = box.next(at(3s));
  REQUIRE(again.has_value());
  CHECK(again->updates.at(0).tokens == List{2, 3});
  CHECK(said(*again) == std::vector<double>{-2, -3});
  box.taken(again->id);
  const auto rest = box.next(at(3s));
  REQUIRE(rest.has_value());
  CHECK(rest->updates.at(0).tokens == List{4});
  CHECK(said(*rest) == std::vector<double>{-4});
}

TEST_CASE("a conductor is gone when it took nothing for the patience, in time that was lived") {
  TokenOutbox box(kOptions);
  Time now = at(100s);
  CHECK(box.tick(now));
  box.add(tokens_of("a", {1}));
  auto sent = box.next(now);
  for (int i = 0; i < 8; ++i) CHECK(box.tick(now += 1s));
  box.taken(sent.value().id);
  CHECK(box.tick(now += 1s));  // nothing waits
  box.add(tokens_of("a", {2}));
  sent = box.next(now);
  for (int i = 0; i < 5; ++i) CHECK(box.tick(now += 1s));
  CHECK(box.tick(now += 1h));  // this process stood still: a second
  box.lost(sent.value().id, now);
  for (int i = 0; i < 3; ++i) CHECK(box.tick(now += 1s));
  CHECK_FALSE(box.tick(now += 1s));
}
