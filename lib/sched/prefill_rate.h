// Learns how long an engine takes for prompts: a fixed part, and so many times what the model's
// cost says.
//
// Both are fitted to the last measurements by relative least squares; the newest counts most, and
// what is far off counts little. They begin at 0 and at a prior factor, which weigh as a few
// measurements do: one answer of a busy machine changes little.
//
// Thread: one owner. Pure.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace mc::sched {

class PrefillRate {
 public:
  // `spec_ms`: what the model's cost says for the tokens that were computed. `prior`: the factor
  // that holds as long as nothing says otherwise.
  void learn(double spec_ms, double measured_ms, double prior = 1);
  // Milliseconds for a prompt of such a cost; `prior` counts until something was measured.
  double predict_ms(double spec_ms, double prior = 1) const;
  double fixed_ms() const { return fixed_ms_; }
  double factor(double prior = 1) const { return seen_ > 0 ? factor_ : prior; }
  double mean_ms() const { return weight_ > 0 ? y_ / weight_ : 0; }  // of those measured
  uint64_t seen() const { return seen_; }

 private:
  static constexpr size_t kKeptMax = 32;
  struct Measured {
    double spec_ms = 0, ms = 0;
  };
  void fit_once(double prior);
  std::array<Measured, kKeptMax> last_{};  // a ring; the newest at (seen_ - 1) % kKeptMax
  double fixed_ms_ = 0, factor_ = 1;
  double weight_ = 0, y_ = 0;  // sums, by weight
  uint64_t seen_ = 0;
};

}  // namespace mc::sched
