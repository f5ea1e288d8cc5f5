#include <doctest/doctest.h>

#include "base/units.h"
#include "rail_sim.h"

namespace mc::xfer {

namespace rail_scheduler_test {

namespace {

using sim::at;
using sim::World;
using Rails = std::vector<sim::Rail>;

constexpr double kRate = 125e6;  // 1 Gbit/s
constexpr uint64_t kSlice = 256 * kKiB;

double payload_rate(World& w, uint64_t bytes) {
  w.push(16 * kMiB, kSlice);  // learn
  w.drain(0);
  const double start = w.now();
  w.push(bytes, kSlice);
  return static_cast<double>(bytes) / w.drain(start);
}

}  // namespace

TEST_SUITE("rail_scheduler") {
  TEST_CASE("four equal rails give 0.95 of their sum") {
    World w(Rails(4, {.rate = kRate}));
    CHECK(payload_rate(w, 256 * kMiB) >= .95 * 4 * kRate);
  }

  TEST_CASE("rails of 1 : 2 : 4 : 8 give 0.92 of their sum, where equal shares would give half") {
    Rails rails;
    for (double share : {1, 2, 4, 8}) rails.push_back({.rate = share * kRate / 4});
    World w(rails);
    const double sum = 15 * kRate / 4, equal_shares = 4 * kRate / 4;
    CHECK(equal_shares < .5 * sum);
    CHECK(payload_rate(w, 256 * kMiB) >= .92 * sum);
  }

  TEST_CASE("no nominal rate: 100 Mbit/s beside 1 Gbit/s and 100 beside 400 Gbit/s alike") {
    for (double scale : {.0125e9, 12.5e9}) {
      World w({{.rate = scale}, {.rate = 4 * scale}}, {.window_max = 1 * kGiB});
      const auto bytes = static_cast<uint64_t>(scale * 2);
      w.push(bytes / 8, std::max<uint64_t>(bytes / 512, 64 * kKiB));
      w.drain(0);
      const double start = w.now();
      w.push(bytes, std::max<uint64_t>(bytes / 512, 64 * kKiB));
      CHECK(static_cast<double>(bytes) / w.drain(start) >= .9 * 5 * scale);
      CHECK(w.spray().view(0, at(w.now())).bandwidth == doctest::Approx(scale).epsilon(.25));
    }
  }

  TEST_CASE("a rail throttled to a tenth costs its share, within 50 ms, and no tail") {
    auto throttled = [](bool really) {
      Rails rails(4, {.rate = kRate});
      if (really) rails[2].rates = {{.5, kRate / 10}};
      World w(rails);
      w.push(1 * kGiB, kSlice);
      w.run_until(1.2);
      return w;
    };
    World calm = throttled(false), w = throttled(true);
    const auto rate = [](const World& x, double from, double to) {
      return static_cast<double>(x.finished(from, to)) / (to - from);
    };
    CHECK(rate(w, .55, 1.2) >= .95 * 3.1 * kRate);
    const auto quiet = calm.service(.3, 1.2), loud = w.service(.3, 1.2);
    const auto p99 = [](const std::vector<double>& v) { return v[v.size() * 99 / 100]; };
    CHECK(p99(loud) <= 2 * p99(quiet));
    CHECK(w.fenced());
  }

  TEST_CASE(
      "a rail cut for 2 s: nothing fails, the rest carries on, and it comes back in a second") {
    Rails rails(4, {.rate = kRate});
    rails[1].dead_from = 1;
    rails[1].dead_until = 3;
    World w(rails);
    w.push(4 * kGiB, kSlice);
    w.run_until(1.2);
    CHECK(static_cast<double>(w.finished(1.1, 1.2)) / .1 >= .9 * 3 * kRate);
    w.run_until(3);
    const uint64_t before = w.carried(1);
    w.run_until(4);
    CHECK(w.carried(1) > before);
    CHECK(static_cast<double>(w.finished(4, 4.0)) >= 0);
    w.run_until(5);
    CHECK(static_cast<double>(w.finished(4, 5)) >= .95 * 4 * kRate);
    CHECK(!w.failed());
    CHECK(w.fenced());
  }

  TEST_CASE("attempts that are answered together are one sample, of the rate and of the latency") {
    constexpr uint64_t kSmall = 4 * kKiB, kTogether = 32;
    constexpr double kSlowRate = 12.5e6, kRoundTrip = 200e-6;
    for (const double rate : {kSlowRate, kRate}) {
      RailScheduler s{SprayConfig{}};
      const RailIndex r = s.add({"l", "r", -1, true});
      AttemptId id = 0;
      double now = 1;
      for (int burst = 0; burst < 40; ++burst) {
        for (uint64_t i = 0; i < kTogether; ++i) s.sent(r, id + i, kSmall, at(now));
        now += kRoundTrip + kTogether * kSmall / rate;
        for (uint64_t i = 0; i < kTogether; ++i) s.done(r, id + i, at(now), i + 1 < kTogether);
        id += kTogether;
        now += .01;
      }
      const RailView seen = s.view(r, at(now));
      CAPTURE(rate);
      CHECK(seen.bandwidth > rate / 2);
      CHECK(seen.bandwidth < 2 * rate);
    }
  }

  TEST_CASE("a rail that loses a fifth of its attempts is put to rest, longer each time") {
    Rails rails(3, {.rate = kRate});
    rails[0].loss = .2;
    World w(rails, {}, 7);
    w.push(4 * kGiB, kSlice);
    w.run_until(8);
    CHECK(w.carried(0) < w.carried(1) / 4);
    CHECK(static_cast<double>(w.finished(1, 8)) / 7 >= .95 * 2 * kRate);
    CHECK(!w.failed());
  }

  TEST_CASE("of two rails 50 us and 2 ms away, small transfers take the quick one") {
    World w({{.rate = kRate, .latency = 2e-3}, {.rate = kRate, .latency = 50e-6}});
    for (int i = 0; i < 400; ++i) {
      w.push(4 * kKiB, 4 * kKiB);
      w.drain(0);
    }
    CHECK(w.carried(1) >= 390 * 4 * kKiB);
    CHECK(w.carried(0) > 0);  // probed, one in a hundred
  }

  TEST_CASE("a stall that meets a rail's first slice does not cost it the next hundred") {
    World w({{.rate = kRate / 50, .rates = {{.05, kRate}}}, {.rate = kRate / 3}});
    for (int i = 0; i < 100; ++i) {
      w.push(kSlice, kSlice);
      w.drain(0);
    }
    CHECK(w.carried(0) > 3 * w.carried(1));
  }

  TEST_CASE("nor does a stall later on") {
    World w({{.rate = kRate, .rates = {{.3, kRate / 9}, {.33, kRate}}}, {.rate = .7 * kRate}});
    w.push(8 * kMiB, kSlice);  // both are known
    w.drain(0);
    while (w.now() < .33) {
      w.push(kSlice, kSlice);
      w.drain(0);
    }
    const uint64_t before[] = {w.carried(0), w.carried(1)};
    for (int i = 0; i < 100; ++i) {
      w.push(kSlice, kSlice);
      w.drain(0);
    }
    CHECK(w.carried(0) - before[0] > 3 * (w.carried(1) - before[1]));
  }

  TEST_CASE(
      "of small slices a rail whose rate collapsed gets no tenth, and others are probed too") {
    World w({{.rate = kRate, .rates = {{.1, kRate / 20}}}, {.rate = kRate / 4}, {.rate = kRate}});
    while (w.now() < .2) {
      w.push(kMiB, kSlice);
      w.drain(0);
    }
    const uint64_t before[] = {w.carried(0), w.carried(1)};
    for (int i = 0; i < 800; ++i) {
      w.push(32 * kKiB, 32 * kKiB);
      w.drain(0);
    }
    CHECK(w.carried(0) - before[0] <= 20 * 32 * kKiB);
    CHECK(w.carried(1) > before[1]);
  }

  TEST_CASE("a rail that rests lets the others be probed one in a hundred, not more") {
    World w({{.rate = kRate / 5}, {.rate = kRate}, {.rate = kRate, .dead_from = 0}});
    w.spray().down(2, at(0));
    for (int i = 0; i < 1000; ++i) {
      w.push(kSlice, kSlice);
      w.drain(0);
    }
    CHECK(w.carried(0) > 3 * kSlice);
    CHECK(w.carried(0) <= 20 * kSlice);
  }

  TEST_CASE("the last slices of a transfer do not wait for a slow rail") {
    World w({{.rate = kRate}, {.rate = kRate / 20}});
    w.push(8 * kMiB, kSlice);
    w.drain(0);
    const double start = w.now();
    w.push(8 * kMiB, kSlice);
    CHECK(8. * kMiB / w.drain(start) >= .9 * kRate);
  }

  TEST_CASE("a far slower rail is called slow, and healthy when it is fast again") {
    Rails rails(3, {.rate = kRate});
    rails[2].rate = kRate / 30;
    rails[2].rates = {{3, kRate}};
    World w(rails);
    w.push(2 * kGiB, kSlice);
    w.run_until(2);
    CHECK(w.spray().view(2, at(2)).state == RailState::kSlow);
    w.run_until(5);
    CHECK(w.spray().view(2, at(5)).state == RailState::kHealthy);
  }

  TEST_CASE("rails outside the map serve what failed on all of those in it") {
    RailScheduler s;
    const RailIndex a = s.add({"eth0", "eth0", -1, true}), b = s.add({"eth1", "eth1", -1, true}),
                    c = s.add({"eth0", "eth1", -1, false});
    CHECK(!s.takes(c, kSlice, kSlice, 0, at(0)));
    CHECK(!s.takes(c, kSlice, kSlice, 1u << a, at(0)));  // b is in the map and fit
    CHECK(s.takes(b, kSlice, kSlice, 1u << a, at(0)));
    CHECK(!s.takes(a, kSlice, kSlice, 1u << a, at(0)));
    CHECK(s.takes(c, kSlice, kSlice, 1u << a | 1u << b, at(0)));
  }

  TEST_CASE("a farther tier serves when the near one is far behind") {
    RailScheduler s;
    s.add({"near", "r", 0, true});
    s.add({"far", "r", 1, true});
    CHECK(s.takes(0, kSlice, kSlice, 0, at(0), MemoryLocation{0, -1}));
    CHECK(!s.takes(1, kSlice, kSlice, 0, at(0), MemoryLocation{0, -1}));
    CHECK(s.takes(1, kSlice, 100 * kSlice, 0, at(0), MemoryLocation{0, -1}));
    // From memory of the other node it is the other way round, and from who knows where the same.
    CHECK(!s.takes(0, kSlice, kSlice, 0, at(0), MemoryLocation{1, -1}));
    CHECK(s.takes(1, kSlice, kSlice, 0, at(0), MemoryLocation{1, -1}));
    CHECK(s.takes(0, kSlice, kSlice, 0, at(0)));
    CHECK(s.takes(1, kSlice, kSlice, 0, at(0)));
    CHECK(s.view(0, at(0), MemoryLocation{0, -1}).tier == 1);
    CHECK(s.view(1, at(0), MemoryLocation{0, -1}).tier == 3);
    CHECK(s.view(1, at(0)).tier == 1);
  }

  TEST_CASE("a GPU's bytes go by the tiers that its place gives the NICs") {
    RailScheduler s;  // seen from GPU 0: 1, 2, 3; from GPU 1: 3, 3, 1
    s.add({"own switch", "r", 0, true, {1, 3}});
    s.add({"own node", "r", 0, true, {2, 3}});
    s.add({"other node", "r", 1, true, {3, 1}});
    const auto taken = [&](const MemoryLocation& memory) {
      std::string out;
      for (RailIndex r = 0; r < 3; ++r)
        if (s.takes(r, 64 * kKiB, 64 * kKiB, 0, at(0), memory)) out += std::to_string(r);
      return out;
    };
    CHECK(taken({0, 0}) == "0");
    CHECK(taken({1, 1}) == "2");
    CHECK(taken({0, -1}) == "01");  // the host's memory of that node
    CHECK(taken({1, 7}) == "2");    // a GPU that the machine does not list: by its node
    CHECK(taken({}) == "012");
    for (RailIndex r = 0; r < 3; ++r) CHECK(s.view(r, at(0), MemoryLocation{0, 0}).tier == r + 1);
    // Tier 2 serves before tier 3 when the near one is behind.
    s.sent(0, 1, 8 * kMiB, at(0));
    CHECK(taken({0, 0}) == "1");
  }

  TEST_CASE("while nothing is in flight, some rail always takes") {
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      CAPTURE(seed);
      Random random(seed);
      RailScheduler s;
      const auto n = static_cast<RailIndex>(1 + random.below(6));
      for (RailIndex i = 0; i < n; ++i)
        s.add({"l", "r", static_cast<int>(random.below(3)) - 1, random.chance(.7)});
      AttemptId id = 0;
      double now = 0;
      for (int step = 0; step < 200; ++step) {
        now += random.exponential(.01);
        // Each rail asks for a slice of its own size: one that carried only few bytes, for a small.
        const uint64_t head = 1 + random.below(random.chance(.8) ? 60 * kKiB : 4 * kMiB);
        const uint64_t backlog = head + (random.chance(.5) ? 0 : random.below(64 * kMiB));
        const int memory = static_cast<int>(random.below(3)) - 1;
        bool taken = false, resting = false;
        for (RailIndex r = 0; r < n && !taken; ++r) {
          resting = resting || s.view(r, at(now)).state >= RailState::kResting;
          const uint64_t bytes = std::min(head, s.max_slice_bytes(r));
          if (!s.takes(r, bytes, backlog, 0, at(now), MemoryLocation{memory, -1})) continue;
          taken = true;
          s.sent(r, ++id, bytes, at(now));
          now += random.chance(.5) ? random.exponential(.01) : random.exponential(1e-4);
          if (random.chance(.02))
            s.failed(r, id, at(now));
          else
            s.done(r, id, at(now));
        }
        CHECK((taken || resting));
        for (RailIndex r : s.to_ping(at(now))) s.pinged(r, Duration(1), at(now));
      }
    }
  }

  TEST_CASE(
      "an attempt that is to be recalled is not held against its rail, however long it takes") {
    RailScheduler s;
    const RailIndex slow = s.add({"a", "b"}), other = s.add({"c", "d"});
    for (AttemptId id = 1; id <= 5; ++id) s.sent(slow, id, kSlice, at(0));
    s.sent(other, 9, kSlice, at(0));
    for (AttemptId id = 1; id <= 5; ++id) s.unwanted(slow, id);
    size_t lost = 0;
    for (const auto& late : s.late(at(10))) lost += late.late == RailScheduler::Late::kLost ? 1 : 0;
    CHECK(lost == 1);
    CHECK(s.view(slow, at(10)).errors == 0);
    CHECK(s.view(slow, at(10)).state == RailState::kHealthy);
    CHECK(s.view(other, at(10)).errors == 1);
    for (AttemptId id = 1; id <= 5; ++id) s.recalled(slow, id, at(10));
    CHECK(s.view(slow, at(10)).inflight == 0);
  }

  TEST_CASE("a rail is as far as its farther end; one near both serves, mapped or not (F46)") {
    RailScheduler s;
    const RailIndex first = s.add({"a0", "b0", 0, true, {}, 0});
    const RailIndex second = s.add({"a1", "b1", 1, true, {}, 1});
    const RailIndex across = s.add({"a0", "b1", 0, false, {}, 1});
    const RailIndex back = s.add({"a1", "b0", 1, false, {}, 0});
    const auto takes = [&](RailIndex r, const MemoryEnds& memory) {
      return s.takes(r, kSlice, kSlice, 0, at(0), memory);
    };
    const MemoryLocation node0{0, -1}, node1{1, -1};
    const MemoryEnds straight(node0, node0), crossed(node0, node1), far(node1, node0);
    CHECK(s.view(first, at(0), crossed).tier == 3);
    CHECK(s.view(second, at(0), crossed).tier == 3);
    CHECK(s.view(across, at(0), crossed).tier == 1);
    CHECK(s.predicted_seconds(first, kSlice, at(0), crossed) ==
          doctest::Approx(10 * s.predicted_seconds(across, kSlice, at(0), crossed)));
    CHECK(takes(first, straight));
    CHECK_FALSE(takes(second, straight));
    CHECK_FALSE(takes(across, straight));
    CHECK(takes(across, crossed));
    CHECK_FALSE(takes(first, crossed));
    CHECK_FALSE(takes(second, crossed));
    CHECK(takes(back, far));
    CHECK_FALSE(takes(across, far));
    // Where one end is not known, the other decides; where none is, the map does.
    CHECK(takes(first, node0));
    CHECK_FALSE(takes(second, node0));
    CHECK(takes(second, MemoryEnds({}, node1)));
    CHECK_FALSE(takes(across, MemoryEnds({}, node1)));
    CHECK(takes(second, {}));
    CHECK_FALSE(takes(back, {}));
  }

  TEST_CASE("whatever happens, each slice is done once and its losers are gone by then") {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      Random random(seed);
      Rails rails(2 + random.below(4));
      for (auto& r : rails) {
        r.rate = random.uniform(5e6, 500e6);
        r.latency = random.uniform(20e-6, 5e-3);
        if (random.chance(.3)) r.loss = random.uniform(0, .3);
        if (random.chance(.3)) {
          r.dead_from = random.uniform(0, 1);
          r.dead_until = r.dead_from + random.uniform(.05, 1);
        }
        if (random.chance(.3)) r.rates[random.uniform(0, 1)] = r.rate / 10;
      }
      rails[0].loss = 0;  // one of them is merely ordinary
      rails[0].dead_from = 1e9;
      World w(rails, {}, seed);
      for (int i = 0; i < 5; ++i) {
        w.push(1 + random.below(64 * kMiB), kSlice);
        w.run_until(w.now() + random.uniform(0, .3));
      }
      w.drain(0, 120);
      CHECK(w.all_done());
      CHECK(!w.failed());
      CHECK(w.fenced());
    }
  }
}

}  // namespace rail_scheduler_test
}  // namespace mc::xfer
