// Tenants that wait get equal numbers of tokens, whatever their load.
#include "sched/token_shares.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "base/random.h"

using namespace mc;
using namespace mc::sched;

namespace {

// A server of eight places, in which each answer gets a token a step.
struct Server {
  struct Running {
    size_t tenant;
    uint64_t left;
  };
  explicit Server(std::vector<double> loads, std::vector<double> weights = {})
      : load(std::move(loads)), weight(std::move(weights)) {
    weight.resize(load.size(), 1);
    served.resize(load.size());
  }
  void step() {
    for (size_t t = 0; t < load.size(); ++t)
      for (double left = load[t]; left > 0 && (left >= 1 || random.chance(left)); --left)
        shares.waits(t, weight[t]);
    while (running.size() < 8) {
      const auto next = shares.next();
      if (!next) break;
      const uint64_t prompt = 10 + random.below(100);
      shares.taken(*next, prompt);
      served[*next] += static_cast<double>(prompt);
      running.push_back({*next, 5 + random.below(30)});
    }
    for (Running& r : running) {
      --r.left;
      served[r.tenant] += 2;
      shares.generated(r.tenant, 1);
    }
    std::erase_if(running, [](const Running& r) { return r.left == 0; });
  }

  std::vector<double> load, weight;  // requests a step
  std::vector<double> served;
  std::vector<Running> running;
  TokenShares shares;
  Random random{1};
};

}  // namespace

TEST_CASE("of two tenants that wait, one with ten times the load, both get the same tokens") {
  Server s({10, 1});
  for (int i = 0; i < 3000; ++i) s.step();
  CHECK(s.shares.waiting(0) > 1000);
  CHECK(s.shares.waiting(1) > 100);
  CHECK(s.served[0] == doctest::Approx(s.served[1]).epsilon(0.01));
}

TEST_CASE("a tenant that wants less than its share gets all it wants, and others share the rest") {
  Server s({10, 10, 0.05});
  for (int i = 0; i < 3000; ++i) s.step();
  CHECK(s.shares.waiting(2) <= 1);
  CHECK(s.served[0] == doctest::Approx(s.served[1]).epsilon(0.01));
  CHECK(s.served[2] < 0.8 * s.served[0]);
}

TEST_CASE("weights share in proportion") {
  Server s({5, 5}, {1, 3});
  for (int i = 0; i < 3000; ++i) s.step();
  CHECK(3 * s.served[0] == doctest::Approx(s.served[1]).epsilon(0.02));
}

TEST_CASE("who was away earns no credit, and who comes back owes what it had") {
  TokenShares s;
  s.waits(0);
  for (int i = 0; i < 100; ++i) {
    s.waits(0);
    s.taken(0, 1000);
  }
  s.waits(1);  // new: it is level with the first, not 100,000 tokens ahead
  CHECK(s.counter(1) == s.counter(0));
  CHECK(s.next() == 0);
  s.taken(0, 10);
  CHECK(s.next() == 1);
  s.taken(1, 500);
  CHECK_FALSE(s.next().has_value());
  s.generated(1, 100);
  CHECK(s.counter(1) == s.counter(0) - 10 + 500 + 200);
  s.waits(2);  // nobody waits: level with the one that was served last
  CHECK(s.counter(2) >= s.counter(0) - 10);
  s.gave_up(2);
  s.waits(1);
  s.waits(0);
  CHECK(s.next() == 0);
  s.gave_up(0);
  s.gave_up(0);  // of nothing: no matter
  CHECK(s.waiting(0) == 0);
  CHECK(s.next() == 1);
}

TEST_CASE("a tenant that was served while nobody waited owes nothing when others come") {
  TokenShares shares;
  for (int i = 0; i < 1000; ++i) {
    shares.passed(1, 1000);
    shares.generated(1, 100);
  }
  shares.waits(2);
  shares.waits(1);
  const double ahead = shares.counter(1) - shares.counter(2);
  CHECK(ahead >= 0);
  CHECK(ahead <= 2000);
  for (int i = 0; i < 4 && shares.next() == 2; ++i) shares.taken(2, 1000), shares.waits(2);
  CHECK(shares.next() == 1);
}
