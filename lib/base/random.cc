#include "base/random.h"

#include <sys/auxv.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

namespace mc {

Random::Random(uint64_t seed) : state_{} {
  for (auto& s : state_) {
    s = mix64(seed);
    seed += 0x9e3779b97f4a7c15ull;
  }
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Random::below(uint64_t n) {
  const uint64_t reject_below = (0 - n) % n;  // so that every residue is equally likely
  for (;;)
    if (const uint64_t x = next(); x >= reject_below) return x % n;
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Random::exponential(double mean) { return -mean * std::log1p(-uniform()); }

double Random::normal() {  // Box-Muller, one of the pair: no hidden state between calls
  const double u = 1.0 - uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * uniform());
}

double Random::lognormal(double mu, double sigma) { return std::exp(mu + sigma * normal()); }

double Random::gamma(double shape, double scale) {  // Marsaglia and Tsang (2000)
  if (shape < 1) return gamma(shape + 1, scale) * std::pow(1.0 - uniform(), 1.0 / shape);
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = normal(), v = std::pow(1.0 + c * x, 3);
    if (v > 0 && std::log(1.0 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v * scale;
  }
}

double Random::beta(double a, double b) {
  const double x = gamma(a, 1), y = gamma(b, 1);
  return x / (x + y);
}

uint64_t fresh_seed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) == static_cast<ssize_t>(sizeof seed)) return seed;
  // A sandbox without it: the loader gave each process 16 random bytes.
  static std::atomic<uint64_t> calls{0};
  const auto given = getauxval(AT_RANDOM);
  if (given != 0) std::memcpy(&seed, reinterpret_cast<const void*>(given), sizeof seed);
  return mix64(seed ^ mix64(static_cast<uint64_t>(getpid()) << 32 ^ calls++));
}

}  // namespace mc
