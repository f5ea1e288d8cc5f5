// Learns how much longer an engine takes for prompts than the model's cost says.
//
// One factor, fitted to what was measured; the newest counts most, and longer prompts more than
// short ones, whose times are mostly something else. It begins at a prior, and stays there while
// prompts take a few milliseconds.
//
// Thread: one owner. Pure.
#pragma once
#include <cstdint>

namespace mc::sched {

class PrefillRate {
 public:
  // `spec_ms`: what the model's cost says for the tokens that were computed.
  void learn(double spec_ms, double measured_ms);
  double factor(double prior = 1) const;
  double mean_ms() const { return weight_ > 0 ? y_ / weight_ : 0; }  // of those measured
  uint64_t seen() const { return seen_; }

 private:
  double weight_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // sums, by weight
  uint64_t seen_ = 0;
};

}  // namespace mc::sched
