#include "sched/request/waiting_room.h"

#include <doctest/doctest.h>

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

}  // namespace waiting_room_test
