#include "xfer/qos/fair_share.h"

#include <doctest/doctest.h>

#include "base/units.h"

using namespace mc;
using namespace mc::xfer;
using namespace std::chrono_literals;

namespace nic_share_test {

namespace {

const Time kStart{1h};
constexpr auto kHigh = Priority::kHigh, kMedium = Priority::kMedium, kLow = Priority::kLow;

NicUsage usage(uint32_t high, uint32_t medium, uint32_t low, double rate = 0) {
  NicUsage out;
  out.active = {high, medium, low};
  out.rate = rate;
  return out;
}

// One second of a link of 125 MB/s kept busy by this process, in attempts of 64 KiB.
Time load(FairShare& nic, Priority p, Time now) {
  constexpr uint64_t kBytes = 64 * kKiB;
  const Duration each = from_seconds(static_cast<double>(kBytes) / 125e6);
  nic.sent(p, kBytes, now);
  for (const Time end = now + 1s; now < end;) {
    nic.sent(p, kBytes, now);
    now += each;
    nic.done(p, kBytes, kBytes, now);
  }
  nic.done(p, kBytes, 0, now);
  return now;
}

}  // namespace

TEST_SUITE("xfer/nic_share") {
  TEST_CASE(
      "processes of a class share equally, classes by weight, and who is idle does not count") {
    FairShare nic;
    CHECK(nic.share(kMedium, kStart) == 1);
    nic.others(usage(0, 3, 0));
    CHECK(nic.share(kMedium, kStart) == doctest::Approx(0.25));
    nic.others(usage(0, 1, 2));
    CHECK(nic.share(kMedium, kStart) == doctest::Approx(4.0 / 5 / 2));
    CHECK(nic.share(kLow, kStart) == doctest::Approx(1.0 / 5 / 3));
    CHECK(nic.share(kHigh, kStart) == doctest::Approx(16.0 / 21));
    nic.others(usage(0, 0, 0));
    nic.wants(kLow, kStart);
    CHECK(nic.share(kMedium, kStart) == doctest::Approx(4.0 / 5));
    CHECK(nic.share(kMedium, kStart + 20ms) == 1);
  }

  TEST_CASE("the shares of all processes add up to the link") {
    constexpr int kProcesses = 5;
    double sum = 0;
    for (int i = 0; i < kProcesses; ++i) {
      FairShare nic;
      nic.wants(kMedium, kStart);
      nic.others(usage(0, kProcesses - 1, 0));
      sum += nic.share(kMedium, kStart);
    }
    CHECK(sum == doctest::Approx(1));
  }

  TEST_CASE("nobody is held back while alone, nor before anything was learned") {
    FairShare nic;
    nic.others(usage(0, 2, 0));
    CHECK(nic.window(kMedium, kStart) == FairShare::kNoLimit);
    const Time now = load(nic, kMedium, kStart);
    CHECK(nic.window(kMedium, now) != FairShare::kNoLimit);
    nic.others(usage(0, 0, 0));
    CHECK(nic.window(kMedium, now) == FairShare::kNoLimit);
    CHECK(nic.slice_max(kMedium, now) == FairShare::kNoLimit);
  }

  TEST_CASE("the window of one among several is its share of what the link does in a while") {
    FairShare nic;
    const Time now = load(nic, kMedium, kStart);
    CHECK(nic.capacity(now) == doctest::Approx(125e6).epsilon(0.03));
    nic.others(usage(0, 1, 0));
    CHECK(static_cast<double>(nic.window(kMedium, now)) ==
          doctest::Approx(125e6 * 0.004 / 2).epsilon(0.03));
    CHECK(nic.slice_max(kMedium, now) < nic.window(kMedium, now) / 2 + 1);
    nic.others(usage(0, 99, 0));
    CHECK(nic.window(kMedium, now) == 128 * kKiB);  // enough to go on with
  }

  TEST_CASE("equal processes get equal windows, whatever each of them moved") {
    FairShare quick, slow;
    Time now = load(quick, kMedium, kStart);
    quick.others(usage(0, 1, 0, 0));
    slow.others(usage(0, 1, 0, quick.demand(now).rate));
    for (int i = 0; i < 10; ++i) {  // a tenth of the link
      slow.sent(kMedium, 64 * kKiB, now);
      now += 50ms;
      slow.done(kMedium, 64 * kKiB, 64 * kKiB, now);
      quick.sent(kMedium, 6 * kMiB, now - 50ms);
      quick.done(kMedium, 6 * kMiB, 6 * kMiB, now);
    }
    CHECK(static_cast<double>(slow.window(kMedium, now)) ==
          doctest::Approx(static_cast<double>(quick.window(kMedium, now))).epsilon(0.1));
  }

  TEST_CASE("who came while the link was full gets a window no larger than who was there before") {
    FairShare early, late;
    const Time now = load(early, kMedium, kStart);
    early.round_trip(100us);
    late.round_trip(20ms);  // of a connection made behind a full queue
    NicUsage seen = usage(0, 1, 0);
    late.others(seen);
    CHECK(late.window(kMedium, now) == FairShare::kNoLimit);  // nothing is known
    seen.capacity = early.demand(now).capacity;
    seen.round_trip = early.demand(now).round_trip;
    late.others(seen);
    early.others(usage(0, 1, 0));
    CHECK(late.window(kMedium, now) == early.window(kMedium, now));
    seen.capacity *= 2;  // and who thinks the link faster is believed by all
    early.others(seen);
    CHECK(early.window(kMedium, now) > late.window(kMedium, now) * 19 / 10);
  }

  TEST_CASE("while high work is about, lower classes keep two small slices and no more") {
    FairShare nic;
    Time now = load(nic, kLow, kStart);
    nic.round_trip(50us);
    CHECK(nic.admits(kLow, 8 * kMiB, now));
    nic.sent(kHigh, 64 * kKiB, now);
    CHECK(nic.guarded(now));
    const uint64_t slice = nic.slice_max(kLow, now);
    CHECK(nic.window(kLow, now) < 80 * kKiB);
    CHECK(slice <= 40 * kKiB);
    CHECK(nic.window(kHigh, now) == FairShare::kNoLimit);
    nic.sent(kLow, slice, now);
    CHECK(nic.admits(kLow, slice, now));
    nic.sent(kLow, slice, now);
    CHECK_FALSE(nic.admits(kLow, 8 * kKiB, now));
    nic.done(kHigh, 64 * kKiB, 64 * kKiB, now);
    CHECK(nic.guarded(now + 249ms));
    CHECK_FALSE(nic.guarded(now + 250ms));
    CHECK(nic.admits(kLow, 8 * kMiB, now + 250ms));
  }

  TEST_CASE("high work of another process counts as one's own") {
    FairShare nic;
    Time now = load(nic, kLow, kStart);
    NicUsage others = usage(0, 0, 0);
    others.high_until = now - 100ms;
    nic.others(others);
    CHECK(nic.window(kLow, now) < 80 * kKiB);
    CHECK(nic.window(kLow, now + 150ms) == FairShare::kNoLimit);
  }

  TEST_CASE("a long link keeps more in flight behind high work, so that it stays full") {
    FairShare nic;
    Time now = load(nic, kLow, kStart);
    nic.round_trip(2ms);
    nic.wants(kHigh, now);
    CHECK(static_cast<double>(nic.window(kLow, now)) ==
          doctest::Approx(125e6 * 0.0023 + 32 * 1024).epsilon(0.05));
  }

  TEST_CASE("behind high work the lower classes of all processes share the little there is") {
    FairShare nic;
    const Time now = load(nic, kLow, kStart);
    nic.wants(kHigh, now);
    nic.others(usage(0, 0, 1));
    CHECK(nic.window(kLow, now) < 40 * kKiB);
    CHECK(nic.slice_max(kLow, now) == 16 * kKiB);
    nic.others(usage(0, 0, 40));
    CHECK(nic.window(kLow, now) == 16 * kKiB);
  }

  TEST_CASE("one attempt may always start, however large") {
    FairShare nic;
    Time now = load(nic, kLow, kStart);
    nic.wants(kHigh, now);
    CHECK(nic.admits(kLow, 16 * kMiB, now));
    nic.sent(kLow, 16 * kMiB, now);
    CHECK_FALSE(nic.admits(kLow, 1, now));
    nic.done(kLow, 16 * kMiB, 0, now);
    CHECK(nic.admits(kLow, 1, now));
  }

  TEST_CASE("what a process tells lapses, later while it has work in flight") {
    FairShare nic;
    nic.wants(kMedium, kStart);
    CHECK(nic.demand(kStart).active_until[1] == kStart + 20ms);
    CHECK(nic.demand(kStart).active_until[0] < kStart);
    nic.sent(kMedium, 100, kStart);
    CHECK(nic.demand(kStart + 500ms).active_until[1] == kStart + 1500ms);
    nic.done(kMedium, 100, 100, kStart + 600ms);
    CHECK(nic.demand(kStart + 700ms).active_until[1] == kStart + 620ms);
  }

  TEST_CASE("a link that became slower is believed after a while") {
    FairShare nic;
    const Time now = load(nic, kLow, kStart);
    CHECK(nic.capacity(now + 4s) == doctest::Approx(125e6 / 4).epsilon(0.05));
  }
}

}  // namespace nic_share_test
