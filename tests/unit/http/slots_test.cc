// F9: whose connection gives way, and which bodies come fast enough.
#include "http/slots.h"

#include <doctest/doctest.h>

#include "http/pace.h"

using namespace mc;
using namespace mc::http;
using namespace std::chrono_literals;
using Slot = ConnectionSlots::Slot;

namespace slots_test {
namespace {

bool none_spared(const Slot&) { return false; }

}  // namespace

TEST_CASE("F9: the oldest unfinished connection of the largest address gives way") {
  ConnectionSlots slots({.unfinished = 4, .unfinished_per_address = 3});
  Slot many[5], one, other;
  slots.opened(one, "10.0.0.1");
  slots.opened(other, "10.0.0.2");
  slots.unfinished(one);
  for (Slot& s : many) slots.opened(s, "10.0.0.9");
  for (size_t i = 0; i < 3; ++i) {
    slots.unfinished(many[i]);
    CHECK(slots.over_limit(many[i], none_spared) == nullptr);
  }
  slots.unfinished(many[3]);  // above its address's
  CHECK(slots.over_limit(many[3], none_spared) == &many[0]);
  slots.closed(many[0]);
  slots.unfinished(other);  // above all
  CHECK(slots.over_limit(other, none_spared) == &many[1]);
  CHECK(slots.over_limit(other, [&](const Slot& s) { return &s == &many[1]; }) == &many[2]);
  CHECK(slots.over_limit(other, [](const Slot&) { return true; }) == nullptr);
  slots.busy(many[1]);  // its request is complete
  CHECK(slots.over_limit(other, none_spared) == nullptr);
  for (Slot* s : {&one, &other, &many[1], &many[2], &many[3], &many[4]}) slots.closed(*s);
}

TEST_CASE("F9: with all slots taken the unfinished give way while they are more than the idle") {
  ConnectionSlots slots({.unfinished = 8, .unfinished_per_address = 8});
  Slot idle[2], slow[2], busy;
  for (Slot* s : {&idle[0], &idle[1], &slow[0], &slow[1], &busy}) slots.opened(*s, "h");
  slots.busy(busy);
  CHECK(slots.oldest(none_spared) == nullptr);  // who is answered keeps its slot
  for (Slot& s : idle) slots.idle(s);
  CHECK(slots.oldest(none_spared) == &idle[0]);
  slots.unfinished(slow[0]);
  CHECK(slots.oldest(none_spared) == &idle[0]);
  slots.unfinished(slow[1]);
  CHECK(slots.oldest(none_spared) == &slow[0]);
  slots.idle(idle[0]);  // asked again
  slots.closed(slow[0]);
  CHECK(slots.oldest(none_spared) == &idle[1]);
  for (Slot* s : {&idle[0], &idle[1], &slow[1], &busy}) slots.closed(*s);
}

TEST_CASE("F9: a body keeps its pace in every window, whatever it brought before") {
  BodyPace pace(10'000);
  Time now{};
  pace.begin(now);
  pace.arrived(30'000'000);
  CHECK(pace.keeps(now += 60s));
  pace.arrived(600'000);
  CHECK(pace.keeps(now += 60s));
  pace.arrived(599'999);
  CHECK(!pace.keeps(now += 60s));
  CHECK(!BodyPace(0).keeps(now));  // not a byte
}

}  // namespace slots_test
