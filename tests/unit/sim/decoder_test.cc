#include "sim/cluster/decoder.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"
#include "trace/records/distribution.h"

using namespace mc;
using namespace mc::sim;

namespace {

Time at(double s) { return Time{} + from_seconds(s); }

cost::ModelSpec
large_steps() {  // a step: 10 ms, 1 ms for each other request, 1 us a token of context
  cost::ModelSpec s = cost::tiny();
  s.cost.c0 = 0.1;
  s.cost.c1 = 1e-3;
  s.cost.c2 = 0;
  s.cost.load_bytes_per_s = 1e18;
  s.cost.t0 = 0.010;
  s.cost.t1 = 0.001;
  s.cost.t2 = 1e-6;
  return s;
}

struct Arrival {
  double at_s;
  Decoding request;
};

// Drives a decoder as the simulator does.
std::map<uint64_t, Decoded> play(Decoder& d, const std::vector<Arrival>& arrivals) {
  std::vector<Decoded> ended;
  size_t next = 0;
  while (next < arrivals.size() || d.deadline() != Time::max()) {
    if (next < arrivals.size() && at(arrivals[next].at_s) < d.deadline()) {
      d.ready(arrivals[next].request, at(arrivals[next].at_s));
      ++next;
    } else {
      d.tick(d.deadline(), ended);
    }
  }
  std::map<uint64_t, Decoded> out;
  for (auto& e : ended) out[e.id] = e;
  return out;
}

// The same, a step at a time, with no arithmetic beyond the definition.
std::map<uint64_t, Decoded> play_slowly(const cost::ModelSpec& m,
                                        const std::vector<Arrival>& arrivals) {
  struct One {
    Decoding r;
    uint64_t done = 0;
    Decoded out;
    std::vector<double> gaps;
  };
  std::vector<One> batch;
  std::map<uint64_t, Decoded> out;
  size_t next = 0;
  double now = 0;
  while (next < arrivals.size() || !batch.empty()) {
    if (batch.empty()) now = std::max(now, arrivals[next].at_s);
    for (; next < arrivals.size() && arrivals[next].at_s <= now + 1e-9; ++next)
      batch.push_back({arrivals[next].request, 0, {}, {}});
    uint64_t context = 0;
    for (const One& o : batch) context += o.r.context + o.done;
    const double step = cost::step_seconds(m, batch.size(), context);
    now += step;
    for (One& o : batch) {
      if (o.done++ == 0)
        o.out.first_token = at(now);
      else
        o.gaps.push_back(step);
      if (o.done < o.r.answer) continue;
      o.out.end = at(now);
      if (!o.gaps.empty()) o.out.tbt_s = trace::longest_tenth_mean(o.gaps);
      out[o.r.id] = o.out;
    }
    std::erase_if(batch, [](const One& o) { return o.done == o.r.answer; });
  }
  return out;
}

double s(Time t) { return to_seconds(t - Time{}); }

}  // namespace

TEST_CASE("many steps at once equal the same steps one by one") {
  const cost::ModelSpec m = large_steps();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<Arrival> arrivals;
    double now = 0;
    for (uint64_t id = 0; id < 60; ++id) {
      now += random.exponential(0.3);
      arrivals.push_back({now, {id, 1 + random.below(4000), 1 + random.below(60), 0}});
    }
    Decoder d(m, {.join_share = 0}, false);
    const auto fast = play(d, arrivals), slow = play_slowly(m, arrivals);
    REQUIRE(fast.size() == slow.size());
    for (const auto& [id, want] : slow) {
      const Decoded& got = fast.at(id);
      CHECK(s(got.first_token) == doctest::Approx(s(want.first_token)).epsilon(1e-5));
      CHECK(s(got.end) == doctest::Approx(s(want.end)).epsilon(1e-5));
      CHECK(got.tbt_s.has_value() == want.tbt_s.has_value());
      if (want.tbt_s) CHECK(*got.tbt_s == doctest::Approx(*want.tbt_s).epsilon(1e-4));
      CHECK(s(got.end) - s(got.first_token) == doctest::Approx(got.gaps_s).epsilon(1e-5));
    }
    CHECK(d.running() == 0);
    CHECK(d.context() == 0);
    CHECK(d.reserved() == 0);
    CHECK(d.waiting_tokens() == 0);
  }
}

TEST_CASE("requests wait in order while the batch is full") {
  const cost::ModelSpec m = large_steps();
  Decoder d(m, {.capacity_tokens = 100, .join_share = 0}, false);
  const auto out = play(d, {{0, {1, 50, 10, 0}}, {0, {2, 60, 10, 0}}, {0.001, {3, 10, 10, 0}}});
  CHECK(s(out.at(2).joined) >= s(out.at(1).end) - 1e-6);
  CHECK(s(out.at(3).joined) >= s(out.at(2).joined) - 1e-6);
}

TEST_CASE("loading a joining request stalls the batch, in one gap of each request") {
  cost::ModelSpec m = large_steps();
  m.cost.t2 = 0;
  const double load_s = 0.7 * static_cast<double>(1000 * m.kv_bytes_per_token()) / 1e6;
  Decoder d(m, {.join_share = 0.7, .load_bytes_per_s = 1e6}, true);
  const auto out = play(d, {{0, {1, 10, 50, 0}}, {0.105, {2, 1000, 5, 0}}});
  const auto& gaps = out.at(1).gaps_list;
  CHECK(*std::max_element(gaps.begin(), gaps.end()) == doctest::Approx(load_s + 0.011));
  CHECK(s(out.at(2).first_token) == doctest::Approx(0.11 + load_s + 0.011));
}

TEST_CASE("a coupled engine computes prompts first: the batch waits, then the first token comes") {
  cost::ModelSpec m = large_steps();
  m.cost.t2 = 0;
  Decoder d(m, {.engine = Engine::kCoupled}, true);
  const auto out = play(d, {{0, {1, 100, 50, 0}}, {0.305, {2, 1000, 5, 500}}});
  CHECK(s(out.at(1).first_token) == doctest::Approx(0.2));  // 0.1 + 100 ms
  const auto& gaps = out.at(1).gaps_list;
  CHECK(gaps.size() == 49);
  CHECK(*std::max_element(gaps.begin(), gaps.end()) == doctest::Approx(0.6 + 0.011));
  CHECK(s(out.at(2).first_token) == doctest::Approx(0.31 + 0.6));
  CHECK(out.at(2).busy_s == doctest::Approx(0.6));
  CHECK(out.at(2).gaps_list[0] == doctest::Approx(0.011));
  CHECK(s(out.at(1).end) - s(out.at(1).first_token) == doctest::Approx(out.at(1).gaps_s));
}

TEST_CASE("chunks share steps with decoding: prompts take longer, no request stalls") {
  cost::ModelSpec m = large_steps();
  m.cost.t2 = 0;
  Decoder d(m, {.engine = Engine::kChunked, .chunk_tokens = 100, .chunk_penalty = 1}, true);
  const auto out = play(d, {{0, {1, 100, 50, 0}}, {0.305, {2, 1000, 5, 0}}});
  const auto& gaps = out.at(1).gaps_list;
  CHECK(*std::max_element(gaps.begin(), gaps.end()) == doctest::Approx(0.1 + 0.1 + 0.010));
  CHECK(s(out.at(2).first_token) == doctest::Approx(0.31 + 0.1 + 10 * 0.11));
}
