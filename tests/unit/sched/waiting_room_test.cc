#include "sched/request/waiting_room.h"

#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <tuple>

#include "base/random.h"

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace waiting_room_test {
namespace {

struct Queue {
  WaitingRoom room{30s};
  Time now{100s};
  void put(uint64_t id, int64_t priority = 0, size_t tenant = 0) {
    room.put(id, {priority, tenant, 1, now});
  }
  // Takes the next as a place is free.
  uint64_t take(uint64_t tokens = 100) {
    const uint64_t id = room.next(now).value_or(0);
    tenant_of[id] = tenant_of.contains(id) ? tenant_of[id] : 0;
    room.served(id, tenant_of[id], tokens);
    return id;
  }
  std::map<uint64_t, size_t> tenant_of;
};

}  // namespace

TEST_CASE("by priority, then by arrival") {
  Queue q;
  q.put(1, 5);
  q.put(2, 5);
  q.put(3, -1);
  CHECK(q.take() == 3);
  CHECK(q.take() == 1);
  CHECK(q.take() == 2);
  CHECK(q.room.size() == 0);
  CHECK(!q.room.next(q.now));
}

TEST_CASE("F69: a steady stream of urgent requests does not starve others") {
  for (const int64_t priority : {1, 1000}) {
    Queue q;
    q.put(1, priority);
    uint64_t id = 2;
    Duration waited{};
    for (q.put(id++);; q.put(id++)) {
      REQUIRE(waited < 30s);
      if (q.take() == 1) break;
      q.now += 100ms;
      waited += 100ms;
    }
    CHECK(waited <= (priority == 1 ? 2s : 15s));
  }
}

TEST_CASE(
    "F71: tenants that wait get equal tokens, also when one asks more and its requests wait "
    "longer") {
  Queue q;
  std::map<size_t, uint64_t> served;
  uint64_t id = 0;
  const auto ask = [&](size_t tenant) {
    q.tenant_of[++id] = tenant;
    q.put(id, 0, tenant);
  };
  for (int i = 0; i < 100; ++i) ask(0);
  for (int i = 0; i < 5; ++i) ask(1);
  for (int i = 0; i < 60; ++i) {
    q.now += 200ms;
    const uint64_t next = *q.room.next(q.now);
    served[q.tenant_of[next]] += 100;
    q.take();
    ask(q.tenant_of[next]);
  }
  CHECK(served[0] == served[1]);
}

TEST_CASE("who tries is out of the order, and keeps its tenant's place in the shares") {
  Queue q;
  q.tenant_of[1] = 1;
  q.put(1, 0, 1);
  q.room.served(1, 1, 500);
  q.tenant_of[2] = 1;
  q.put(2, 0, 1);
  q.put(3, 0, 0);  // begins at the other's counter: no credit for not having waited
  CHECK(q.room.next(q.now) == 2);
  q.room.tries(2, 7);
  CHECK(q.room.next(q.now) == 3);
  CHECK(q.room.size() == 1);
  CHECK(!q.room.has(2));
  q.put(2, 0, 1);
  CHECK(q.room.next(q.now) == 2);
  CHECK(q.room.next(q.now, 7) == 3);  // it tried in this round
  CHECK(q.room.last_round(2) == 7);
  q.room.gone(2);
  q.room.gone(3);
  q.room.gone(9);
  CHECK(q.room.size() == 0);
}

TEST_CASE("the order is that of a look at all who wait, whatever happens") {
  struct Entry {
    WaitingRoom::Turn turn;
    bool queued = true;
    uint64_t round = 0;
  };
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    WaitingRoom room{30s};
    TokenShares shares;  // told the same
    std::map<uint64_t, Entry> all;
    Time now{100s};
    uint64_t id = 0, round = 0;
    const auto look = [&](uint64_t of) {
      std::optional<uint64_t> found;
      std::map<int64_t, std::tuple<double, uint64_t>> best;
      for (const auto& [request, e] : all) {
        if (!e.queued || (of != 0 && e.round == of)) continue;
        const std::tuple key(shares.counter(e.turn.tenant), request);
        const auto [at, fresh] = best.try_emplace(e.turn.priority, key);
        if (!fresh && key < at->second) at->second = key;
      }
      std::tuple<int64_t, double, uint64_t> least;
      for (const auto& [priority, b] : best) {
        const Duration waited = now - all[std::get<1>(b)].turn.since;
        const int64_t aged = waited >= 15s
                                 ? std::numeric_limits<int64_t>::min()
                                 : priority - static_cast<int64_t>(to_seconds(waited) / 30 * 16);
        const std::tuple key(aged, std::get<0>(b), std::get<1>(b));
        if (found && least <= key) continue;
        found = std::get<1>(b);
        least = key;
      }
      return found;
    };
    for (int i = 0; i < 300; ++i) {
      now += Duration(random.below(500'000'000));
      const uint64_t what = random.below(10), one = id == 0 ? 0 : 1 + random.below(id);
      const auto it = all.find(one);
      if (what < 4) {
        const WaitingRoom::Turn turn{static_cast<int64_t>(random.below(4)), random.below(5),
                                     1 + static_cast<double>(random.below(3)), now};
        room.put(++id, turn);
        shares.waits(turn.tenant, turn.share);
        all[id] = {turn};
      } else if (what < 6) {
        if (random.chance(0.3)) ++round;
        if (const auto next = room.next(now, round); next && round > 0) {
          room.tries(*next, round);
          all[*next].queued = false;
          all[*next].round = round;
        }
      } else if (what < 7 && it != all.end()) {
        room.put(one, it->second.turn);
        it->second.queued = true;
      } else if (what < 8 && it != all.end()) {
        room.served(one, it->second.turn.tenant, 70);
        shares.taken(it->second.turn.tenant, 70);
        all.erase(it);
      } else if (what < 9 && it != all.end()) {
        room.gone(one);
        shares.gave_up(it->second.turn.tenant);
        all.erase(it);
      } else {
        const size_t tenant = random.below(5);
        room.generated(tenant, 10);
        shares.generated(tenant, 10);
      }
      REQUIRE(room.next(now) == look(0));
      if (round > 0) REQUIRE(room.next(now, round) == look(round));
    }
  }
}

TEST_CASE("a hundred thousand wait, and each is found at once") {
  WaitingRoom room{30s};
  const Time now{100s};
  constexpr uint64_t kMany = 100'000;
  for (uint64_t id = 1; id <= kMany; ++id) {
    room.put(id, {0, id % 7, 1, now});
    REQUIRE(room.next(now));
  }
  for (uint64_t n = kMany; n > 0; --n) {
    const uint64_t id = *room.next(now);
    room.served(id, id % 7, 1);
  }
  CHECK(room.size() == 0);
}

}  // namespace waiting_room_test
