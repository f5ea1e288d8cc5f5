#include "serve/external/event_order.h"

#include <doctest/doctest.h>

#include "base/random.h"

using namespace mc;
using namespace mc::serve;
using namespace std::chrono_literals;

namespace event_order_test {

namespace {

const Time t0{};

std::string text(uint64_t seq) { return "batch " + std::to_string(seq); }

// What the steps do to a cache: the numbers applied since the last clear.
struct Applied {
  std::vector<std::string> batches;
  int clears = 0;
  void take(const EventOrder::Steps& steps) {
    for (const auto& s : steps) {
      if (s.clear) {
        ++clears;
        batches.clear();
      } else {
        batches.push_back(s.payload);
      }
    }
  }
  std::string str() const {
    std::string all;
    for (const auto& b : batches) all += b.substr(6) + " ";
    return all;
  }
};

EventOrder started() {  // its first replay is over, nothing was there
  EventOrder order({}, t0);
  CHECK(order.ask() == 0u);
  CHECK(order.replayed(EventOrder::kEnd, "", t0).empty());
  return order;
}

}  // namespace

TEST_CASE("everything there is gets asked for first, and what comes meanwhile waits") {
  EventOrder order({}, t0);
  Applied a;
  CHECK(order.ask() == 0u);
  CHECK_FALSE(order.ask());
  a.take(order.live(3, text(3), t0));
  CHECK(a.batches.empty());
  for (uint64_t i = 0; i < 3; ++i) a.take(order.replayed(i, text(i), t0));
  a.take(order.replayed(EventOrder::kEnd, "", t0));
  CHECK(a.str() == "0 1 2 3 ");
  a.take(order.live(4, text(4), t0));
  CHECK(order.next() == 5);
  CHECK(a.clears == 0);
}

TEST_CASE("a gap is filled from the publisher before what came after it") {
  auto order = started();
  Applied a;
  a.take(order.live(0, text(0), t0));
  a.take(order.live(3, text(3), t0));
  CHECK(order.gaps() == 1);
  CHECK(order.ask() == 0u);  // with the last one applied, to be sure whose it is
  a.take(order.live(4, text(4), t0));
  for (uint64_t i = 0; i < 5; ++i) a.take(order.replayed(i, text(i), t0));  // 3 and 4 too
  a.take(order.replayed(EventOrder::kEnd, "", t0));
  CHECK(a.str() == "0 1 2 3 4 ");
  a.take(order.live(5, text(5), t0));
  CHECK(a.str() == "0 1 2 3 4 5 ");
  CHECK(a.clears == 0);
}

TEST_CASE("a batch that was replayed before it was published is applied once") {
  auto order = started();
  Applied a;
  a.take(order.live(0, text(0), t0));
  a.take(order.live(2, text(2), t0));
  a.take(order.replayed(1, text(1), t0));
  a.take(order.replayed(2, text(2), t0));
  a.take(order.replayed(3, text(3), t0));  // still on its way as a live one
  a.take(order.replayed(EventOrder::kEnd, "", t0));
  a.take(order.live(3, text(3), t0));
  CHECK(a.str() == "0 1 2 3 ");
  CHECK(a.clears == 0);
}

TEST_CASE("what the publisher no longer has costs all that was known, and no more") {
  auto order = started();
  Applied a;
  a.take(order.live(0, text(0), t0));
  a.take(order.live(9, text(9), t0));
  CHECK(order.ask() == 0u);
  a.take(order.replayed(7, text(7), t0));
  a.take(order.replayed(8, text(8), t0));
  a.take(order.replayed(EventOrder::kEnd, "", t0));
  CHECK(a.clears == 1);
  CHECK(a.str() == "7 8 9 ");
  // A replay that is not answered ends in time.
  a.take(order.live(20, text(20), t0 + 1s));
  CHECK(order.ask() == 9u);
  a.take(order.tick(t0 + 2s));
  CHECK(a.clears == 1);
  for (const auto later : {3s, 5s}) {  // asked again
    a.take(order.tick(t0 + later));
    CHECK(order.ask() == 9u);
  }
  CHECK(a.clears == 1);
  a.take(order.tick(t0 + 7s));
  CHECK_FALSE(order.ask());
  CHECK(a.clears == 2);
  CHECK(a.str() == "20 ");
  a.take(order.replayed(10, text(10), t0 + 8s));  // too late: it must bring nothing back
  CHECK(a.str() == "20 ");
}

TEST_CASE("another publisher's numbers start over, and nothing of the old one stays") {
  auto order = started();
  Applied a;
  for (uint64_t i = 0; i < 5; ++i) a.take(order.live(i, text(i), t0));
  a.take(order.live(0, "batch new0", t0));
  CHECK(a.clears == 1);
  CHECK(order.ask() == 0u);
  a.take(order.replayed(0, "batch new0", t0));
  a.take(order.replayed(EventOrder::kEnd, "", t0));
  a.take(order.live(1, "batch new1", t0));
  CHECK(a.str() == "new0 new1 ");
}

TEST_CASE("another publisher that is already further is known by its contents") {
  auto order = started();
  Applied a;
  for (uint64_t i = 0; i < 5; ++i) a.take(order.live(i, text(i), t0));
  a.take(order.live(9, "batch new9", t0));
  CHECK(order.ask() == 4u);
  a.take(order.replayed(4, "batch new4", t0));
  CHECK(a.clears == 1);
  CHECK(a.batches.empty());
  CHECK(order.ask() == 0u);
  for (uint64_t i = 0; i < 10; ++i) a.take(order.replayed(i, "batch new" + std::to_string(i), t0));
  a.take(order.replayed(EventOrder::kEnd, "", t0));
  CHECK(a.batches.size() == 10);
  CHECK(order.next() == 10);
  // One that has not come as far has nothing to show: it is noticed after silence.
  a.take(order.tick(t0 + 5s));
  CHECK(order.ask() == 9u);
  a.take(order.replayed(EventOrder::kEnd, "", t0 + 5s));
  CHECK(a.clears == 2);
  CHECK(order.ask() == 0u);
}

TEST_CASE("without a replay socket a gap costs all that was known at once") {
  EventOrder order({.can_ask = false}, t0);
  Applied a;
  CHECK_FALSE(order.ask());
  a.take(order.live(5, text(5), t0));
  a.take(order.live(6, text(6), t0));
  CHECK(a.str() == "5 6 ");
  a.take(order.live(8, text(8), t0));
  CHECK(a.clears == 1);
  CHECK(a.str() == "8 ");
}

TEST_CASE("a lost last batch is found by asking after silence") {
  auto order = started();
  Applied a;
  a.take(order.live(0, text(0), t0));
  a.take(order.tick(t0 + 1s));
  CHECK_FALSE(order.ask());
  a.take(order.tick(t0 + 2s));
  CHECK(order.ask() == 0u);
  a.take(order.replayed(0, text(0), t0 + 2s));
  a.take(order.replayed(1, text(1), t0 + 2s));
  a.take(order.replayed(EventOrder::kEnd, "", t0 + 2s));
  CHECK(a.str() == "0 1 ");
}

TEST_CASE("a publisher that floods while it owes a replay is given up, within the bound") {
  auto order = started();
  Applied a;
  for (uint64_t i = 1; i <= EventOrder::kWaitingMax + 1; ++i) a.take(order.live(i, text(i), t0));
  CHECK(a.batches.size() == EventOrder::kWaitingMax + 1);
  CHECK_FALSE(order.replaying());
  a.take(order.live(1 << 20, std::string(EventOrder::kWaitingBytes + 1, 'x'), t0));
  CHECK(a.batches.size() == 1);
  CHECK(order.live(EventOrder::kEnd, "", t0).empty());
}

// Whatever is lost, late or repeated: what stands in the end is a run that ends with the last
// batch, and it is all of them when the publisher still had them.
TEST_CASE("after any losses the batches since the last clear are the newest, in order") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const uint64_t keep = random.chance(0.5) ? 1000 : 20;
    EventOrder order({}, t0);
    Applied a;
    Time now = t0;
    uint64_t sent = 0;
    std::optional<uint64_t> owed = order.ask();
    const auto settle = [&] {
      for (uint64_t i = std::max(*owed, sent > keep ? sent - keep : 0); i < sent; ++i)
        if (keep == 1000 || !random.chance(0.02)) a.take(order.replayed(i, text(i), now));
      a.take(order.replayed(EventOrder::kEnd, "", now));
      owed = order.ask();
    };
    for (int step = 0; step < 300; ++step) {
      now += 50ms;
      const uint64_t seq = sent++;
      if (!random.chance(0.1)) a.take(order.live(seq, text(seq), now));
      a.take(order.tick(now));
      if (const auto from = order.ask()) owed = from;
      if (owed && random.chance(0.3)) settle();
    }
    for (int i = 0; i < 100 && order.next() < sent; ++i) {
      now += 1s;
      a.take(order.tick(now));
      if (const auto from = order.ask()) owed = from;
      if (owed) settle();
    }
    REQUIRE(order.next() == sent);
    for (size_t i = 0; i < a.batches.size(); ++i)
      REQUIRE(a.batches[i] == text(sent - a.batches.size() + i));
    if (keep == 1000) REQUIRE(a.batches.size() == sent);
  }
}

}  // namespace event_order_test
