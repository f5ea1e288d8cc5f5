#include "cost/cost_fit.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/json.h"
#include "base/random.h"

using namespace mc;
using namespace mc::cost;

namespace cost_fit_test {
namespace {

ModelSpec slow() {
  ModelSpec s = tiny();
  s.cost.c0 = 0.01;
  s.cost.c1 = 3e-5;
  s.cost.c2 = 4e-9;
  s.cost.load_bytes_per_s = 2e9;
  s.cost.t0 = 0.02;
  s.cost.t1 = 0.003;
  s.cost.t2 = 5e-7;
  return s;
}
struct Points {
  std::vector<PrefillPoint> prefill;
  std::vector<StepPoint> steps;
};
// As that spec takes it, each by up to `noise` longer or shorter.
Points measured(const ModelSpec& s, double noise, uint64_t seed) {
  Random random(seed);
  const auto off = [&] { return 1 + noise * (2 * random.uniform() - 1); };
  Points points;
  for (const uint64_t n : {100UL, 400UL, 1600UL, 6400UL})
    for (const uint64_t p : {uint64_t{0}, n / 2, n - n / 8})
      points.prefill.push_back({n, p, prefill_seconds(s, n, p) * off()});
  for (const uint64_t context : {100UL, 1000UL, 10000UL})
    for (const uint64_t batch : {1UL, 2UL, 4UL, 8UL})
      points.steps.push_back(
          {batch, batch * context, step_seconds(s, batch, batch * context) * off()});
  return points;
}

}  // namespace

TEST_CASE("exact times give the cost model they were made with") {
  const ModelSpec want = slow();
  const Points at = measured(want, 0, 1);
  const auto fit = fit_cost(tiny(), at.prefill, at.steps);
  REQUIRE(fit);
  CHECK(fit->cost.c0 == doctest::Approx(want.cost.c0));
  CHECK(fit->cost.c1 == doctest::Approx(want.cost.c1));
  CHECK(fit->cost.c2 == doctest::Approx(want.cost.c2));
  CHECK(fit->cost.load_bytes_per_s == doctest::Approx(want.cost.load_bytes_per_s));
  CHECK(fit->cost.t0 == doctest::Approx(want.cost.t0));
  CHECK(fit->cost.t1 == doctest::Approx(want.cost.t1));
  CHECK(fit->cost.t2 == doctest::Approx(want.cost.t2));
  CHECK(fit->cost.transfer_bytes_per_s == tiny().cost.transfer_bytes_per_s);
  CHECK(fit->prefill.worst < 1e-6);
  CHECK(fit->step.worst < 1e-6);
}

TEST_CASE("noisy times give no negative coefficient, and predictions within the noise") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ModelSpec s = slow();
    if (seed % 2) s.cost.c2 = s.cost.t2 = 0;  // what is not there may come out below 0
    s.cost.load_bytes_per_s = 1e300;
    const Points at = measured(s, 0.2, seed);
    const auto fit = fit_cost(tiny(), at.prefill, at.steps);
    REQUIRE(fit);
    const CostModel& c = fit->cost;
    CHECK(std::min({c.c0, c.c1, c.c2, c.t0, c.t1, c.t2}) >= 0);
    CHECK(fit->prefill.mean < 0.2);
    CHECK(fit->step.mean < 0.2);
    ModelSpec found = s;
    found.cost = c;
    CHECK(prefill_seconds(found, 3000, 0) ==
          doctest::Approx(prefill_seconds(s, 3000, 0)).epsilon(0.2));
  }
}

TEST_CASE("reuse without a cost is free, and points that cannot be fitted are refused") {
  ModelSpec s = slow();
  s.cost.load_bytes_per_s = 1e300;
  Points at = measured(s, 0, 1);
  REQUIRE(fit_cost(tiny(), at.prefill, at.steps)->cost.load_bytes_per_s == kFreeLoad);
  CHECK(!fit_cost(tiny(), std::span(at.prefill).first(3), at.steps));
  CHECK(!fit_cost(tiny(), at.prefill, std::span(at.steps).first(2)));
  at.prefill[2].seconds = 0;
  CHECK(!fit_cost(tiny(), at.prefill, at.steps));
}

TEST_CASE("a written spec reads back, and times of another model are refused") {
  const ModelSpec s = slow();
  const auto read = parse_spec(to_json(s));
  REQUIRE(read);
  CHECK(to_json(*read) == to_json(s));
  CHECK(read->fingerprint(16) == s.fingerprint(16));
  CHECK(read->cost.c2 == s.cost.c2);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("mc-cost-" + std::to_string(::getpid()))).string();
  std::ofstream(path) << to_json(s).dump();
  const auto cost = load_cost(path, tiny());
  ModelSpec other = tiny();
  ++other.kv_heads;
  const auto refused = load_cost(path, other);
  std::filesystem::remove(path);
  REQUIRE(cost);
  CHECK(cost->t2 == s.cost.t2);
  REQUIRE(!refused);
  CHECK(refused.error().what.find("2 KV heads of 32") != std::string::npos);
  CHECK(refused.error().what.find("3 KV heads of 32") != std::string::npos);
  CHECK(load_cost(path, tiny()).error().code == Code::kNotFound);
}

}  // namespace cost_fit_test
