// Generates seeded random numbers: xoshiro256**, seeded by splitmix64. The same seed gives the same
// sequence on every machine and library. The standard's distributions do not promise that.
//
// Thread: one owner; pass it in, print the seed on failure.
// Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021).
#pragma once
#include <array>
#include <cstdint>

namespace mc {

// Mixes 64 bits: the finalizer of splitmix64.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed);
  uint64_t next();
  uint64_t below(uint64_t n);  // uniform in [0, n); n > 0
  double uniform();            // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  bool chance(double p) { return uniform() < p; }
  double exponential(double mean);
  double normal();  // mean 0, deviation 1
  double lognormal(double mu, double sigma);
  double gamma(double shape, double scale);
  double beta(double a, double b);

 private:
  std::array<uint64_t, 4> state_;
};

// A seed for runs that did not ask for one; from the kernel, or where that has none to give from
// the clock and the process. Thread: any.
uint64_t fresh_seed();

}  // namespace mc
