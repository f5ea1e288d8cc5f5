// Predicts durations in milliseconds: the model's polynomial, corrected by measurements.
//
// The correction is one factor for prefill and two bandwidths: one for transfers to decode nodes,
// by the tail that is left when the prompt is computed, and one for whole fetches from a peer. It
// follows slower machines and congested links, and starts at the model's own numbers. What was
// learned of fetches fades within minutes, as nobody fetches over a link that is thought slow.
// Fetches from the pool have a round trip and a bandwidth for each tier, which start at
// kPoolRoundTripMs, kPoolMemoryBytes and kPoolDiskBytes.
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
  // KV of that many tokens, to a decode node: what is left of it when the prompt is computed.
  double transfer_ms(uint64_t tokens) const;
  double fetch_ms(uint64_t tokens) const;  // from another prefill node, all of it
  // A fetch from the pool, by where the tokens' KV is. 0 for none.
  double pool_ms(uint64_t memory_tokens, uint64_t disk_tokens) const;
  double step_ms(uint64_t batch, uint64_t context_tokens) const;

  void learn_prefill(uint64_t tokens, uint64_t reused, double measured_ms);
  // `whole`: nothing was sent while it was computed, so a fetch takes as long.
  void learn_transfer(uint64_t bytes, double measured_ms, bool whole = false);
  void learn_fetch(uint64_t bytes, double measured_ms);
  void advance(Time now);  // what was learned of fetches fades
  // A fetch from the pool as measured. Of one from both tiers memory's share is known already.
  void learn_pool(uint64_t memory_tokens, uint64_t disk_tokens, double measured_ms);

  double prefill_factor() const { return factor_; }
  double transfer_bytes_per_s() const { return bandwidth_; }
  double fetch_bytes_per_s() const { return fetch_bandwidth_; }
  static constexpr double kPoolRoundTripMs = 1;
  static constexpr double kPoolMemoryBytes = 2e9, kPoolDiskBytes = 500e6;  // a second
  double pool_bytes_per_s(bool disk) const { return disk ? pool_disk_ : pool_memory_; }
  const cost::ModelSpec& spec() const { return spec_; }

 private:
  cost::ModelSpec spec_;
  double factor_ = 1;
  double bandwidth_, fetch_bandwidth_;
  Time advanced_{};
  double pool_memory_ = kPoolMemoryBytes, pool_disk_ = kPoolDiskBytes;
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
