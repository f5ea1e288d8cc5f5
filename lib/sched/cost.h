// Predicts durations in milliseconds: the model's polynomial, corrected by measurements.
//
// The correction is one factor for prefill and one bandwidth for transfers. It follows slower
// machines and congested links, and starts at the model's own numbers.
//
// Thread: one owner. Pure: no clock. Source: Mooncake paper section 4.1.
#pragma once
#include <cstdint>

#include "base/time.h"
#include "cost/model_spec.h"

namespace mc::sched {

class Cost {
 public:
  explicit Cost(cost::ModelSpec spec);

  double prefill_ms(uint64_t tokens, uint64_t reused) const;
  double spec_prefill_ms(uint64_t tokens, uint64_t reused) const;  // without the correction
  double transfer_ms(uint64_t tokens) const;  // KV of that many tokens between two nodes
  double step_ms(uint64_t batch, uint64_t context_tokens) const;

  void learn_prefill(uint64_t tokens, uint64_t reused, double measured_ms);
  void learn_transfer(uint64_t bytes, double measured_ms);

  double prefill_factor() const { return factor_; }
  double transfer_bytes_per_s() const { return bandwidth_; }
  const cost::ModelSpec& spec() const { return spec_; }

 private:
  cost::ModelSpec spec_;
  double factor_ = 1;
  double bandwidth_;
};

// How many times longer a node's transfers take than what is predicted for all: a node whose link
// is congested is seen, and avoided. What was seen fades, so that it is tried again.
class Congestion {
 public:
  void learn(double predicted_ms, double measured_ms, Time now);
  double factor(Time now) const;  // 1 and more: that a node is faster than others proves nothing

 private:
  double excess_ = 0;  // over 1
  Time seen_{};
};

}  // namespace mc::sched
