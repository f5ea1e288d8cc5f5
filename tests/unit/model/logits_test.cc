// Biases, penalties and log-probabilities of logits, beside what a hand counts.
#include "model/forward/logits.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "model/forward/sampler.h"

using namespace mc;
using namespace mc::model;

TEST_CASE("each penalty changes the logits of the tokens that it is about, and no other") {
  const std::vector<float> raw = {2, -2, 4, -4, 1, 0.5f};
  const std::vector<int32_t> prompt = {0, 1, 0, 99, -7}, said = {2, 3, 2, 2, 1};
  const auto after = [&](Penalties p) {
    std::vector<float> logits = raw;
    penalize(logits, p, prompt, said);
    return logits;
  };
  CHECK(after({}) == raw);
  // 1 once, 2 three times, 3 once; the prompt does not count.
  CHECK(after({.presence = 0.5}) == std::vector<float>{2, -2.5f, 3.5f, -4.5f, 1, 0.5f});
  CHECK(after({.frequency = 0.5}) == std::vector<float>{2, -2.5f, 2.5f, -4.5f, 1, 0.5f});
  CHECK(after({.frequency = -1}) == std::vector<float>{2, -1, 7, -3, 1, 0.5f});
  // The prompt counts, and how often does not.
  CHECK(after({.repetition = 2}) == std::vector<float>{1, -4, 2, -8, 1, 0.5f});
  // Repetition first, then the others.
  CHECK(after({1, 0.5, 2}) == std::vector<float>{1, -5.5f, -0.5f, -9.5f, 1, 0.5f});
}

TEST_CASE("a bias is added to its token's logit") {
  std::vector<float> logits = {1, 2, 3};
  const std::vector<Bias> bias = {{1, 5}, {2, -100}, {3, 9}, {-1, 9}};
  add_bias(logits, bias);
  CHECK(logits == std::vector<float>{1, 7, -97});
}

TEST_CASE("log-probabilities add up to one, and the likeliest are in order") {
  std::vector<float> logits;
  Random random(4);
  for (int i = 0; i < 1000; ++i)
    logits.push_back(static_cast<float>(static_cast<double>(random.below(4000)) / 100 - 20));
  long double sum = 0;  // another way: no greatest is taken off
  for (const float l : logits) sum += std::exp(static_cast<long double>(l));
  const double all = log_sum(logits);
  CHECK(all == doctest::Approx(static_cast<double>(std::log(sum))).epsilon(1e-12));
  double total = 0;
  for (const float l : logits) total += std::exp(l - all);
  CHECK(total == doctest::Approx(1).epsilon(1e-9));
  CHECK(log_sum(std::vector<float>{1e30f, 0}) == doctest::Approx(1e30));
  CHECK(likeliest(std::vector<float>{1, 3, 2, 3}, 3) == std::vector<int32_t>{1, 3, 2});
  CHECK(likeliest(std::vector<float>{1, 2}, 5) == std::vector<int32_t>{1, 0});
  CHECK(likeliest(logits, 20).size() == 20);
}

TEST_CASE("min_p leaves out what is less likely than its part of the likeliest, before top_k") {
  // Probabilities as 1, 0.5, 0.26, 0.24, 0.1 of the likeliest.
  std::vector<float> logits;
  for (const double p : {0.24, 1.0, 0.1, 0.5, 0.26})
    logits.push_back(static_cast<float>(std::log(p)));
  const auto drawn = [&](double min_p, double temperature, uint32_t top_k, double top_p) {
    std::vector<bool> seen(logits.size());
    for (uint64_t i = 0; i < 4000; ++i) {
      auto row = logits;
      seen[static_cast<size_t>(sample(row, {temperature, top_k, top_p, 7, i, {}, min_p}))] = true;
    }
    return seen;
  };
  CHECK(drawn(0, 1, 0, 1) == std::vector<bool>{true, true, true, true, true});
  CHECK(drawn(0.25, 1, 0, 1) == std::vector<bool>{false, true, false, true, true});
  CHECK(drawn(0.25, 1, 2, 1) == std::vector<bool>{false, true, false, true, false});
  CHECK(drawn(1, 1, 0, 1) == std::vector<bool>{false, true, false, false, false});
  // At twice the temperature the root of each: 0.49, 1, 0.32, 0.71, 0.51.
  CHECK(drawn(0.4, 2, 0, 1) == std::vector<bool>{true, true, false, true, true});
  // top_p of what min_p left: 1 + 0.5 of 1.76 are 0.85, of all 2.1 they would be 0.71.
  CHECK(drawn(0.25, 1, 0, 0.8) == std::vector<bool>{false, true, false, true, false});
  CHECK(drawn(0, 1, 0, 0.8) == std::vector<bool>{false, true, false, true, true});
}

TEST_CASE("the likeliest is the first of the greatest, in vocabularies of any size") {
  Random random(7);
  const auto likeliest_here = [](std::vector<float> row) { return sample(row, {}); };
  for (const size_t size : {1u, 7u, 8u, 511u, 512u, 513u, 1500u, 4096u}) {
    CAPTURE(size);
    std::vector<float> row(size);
    for (float& v : row) v = static_cast<float>(random.below(size / 4 + 2)) - 2000;  // many equal
    const auto want = std::max_element(row.begin(), row.end()) - row.begin();
    CHECK(likeliest_here(row) == want);
    row.front() = std::nanf("");
    row.back() = 3;
    CHECK(likeliest_here(row) == static_cast<int32_t>(size) - 1);
    std::fill(row.begin(), row.end(), std::nanf(""));
    CHECK(likeliest_here(row) == 0);
  }
}
