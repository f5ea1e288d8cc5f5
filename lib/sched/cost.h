// Predicts durations in milliseconds: the model's polynomial, corrected by measurements.
//
// The correction is one factor for prefill and two bandwidths: one for transfers to decode nodes,
// by the tail that is left when the prompt is computed, and one for whole fetches from a peer. What
// decode nodes have already is not sent: the share of prompts that is sent is learned, too. It
// follows slower machines and congested links, and starts at the model's own numbers. Fetches from
// the pool have a round trip, kPoolRoundTripMs, and a bandwidth for each tier, which start at the
// model's and at kPoolDiskBytes, and one for each node that was fetched from lately. What was
// learned of fetches fades within minutes, as nobody fetches over a link, or from disks, that are
// thought slow.
//
// Thread: one owner. Pure: no clock. Source: Mooncake paper section 4.1.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/time.h"
#include "cost/model_spec.h"
#include "sched/pool/holder_rates.h"
#include "sched/pool/pool_index.h"
#include "sched/step_rate.h"

namespace mc::sched {

// A node that is a chain of processes with some of the layers each: prompts pass through it in
// chunks, and every process computes another one.
struct Pipeline {
  uint32_t stages = 1;
  uint64_t chunk_tokens = 0;  // 0: a prompt is one chunk
};

class Cost {
 public:
  explicit Cost(cost::ModelSpec spec);

  double prefill_ms(uint64_t tokens, uint64_t reused, const Pipeline& node = {}) const;
  // Without the correction.
  double spec_prefill_ms(uint64_t tokens, uint64_t reused, const Pipeline& node = {}) const;
  // KV of a prompt of that many tokens, to a decode node: what is left of it when it is computed.
  double transfer_ms(uint64_t tokens) const;
  double send_ms(uint64_t bytes) const;    // the same, where that much is sent
  double fetch_ms(uint64_t tokens) const;  // from another prefill node, all of it
  // A fetch from nodes of the pool that were not measured, by the tier. 0 for none.
  double pool_ms(uint64_t memory_tokens, uint64_t disk_tokens) const;
  double pool_token_ms(const PoolPlace& place) const;  // of each, besides the round trip
  double step_ms(uint64_t batch, uint64_t context_tokens) const {
    return mean_step_ms(static_cast<double>(batch), static_cast<double>(context_tokens));
  }
  double mean_step_ms(double batch, double context_tokens) const {
    return steps_.predict_ms(batch, context_tokens);
  }
  // From when the prompt's KV is sent to the first token: messages, loading, and the step that it
  // waits for, beside its own one.
  double first_step_ms(double step_ms) const { return std::max(0.0, step_ms + first_more_ms_); }

  void learn_prefill(uint64_t tokens, uint64_t reused, double measured_ms,
                     const Pipeline& node = {});
  // `whole`: nothing was sent while it was computed, so a fetch takes as long.
  void learn_transfer(uint64_t bytes, double measured_ms, bool whole = false);
  void learn_sent(uint64_t bytes, uint64_t tokens);  // of a prompt of that many tokens
  void learn_fetch(uint64_t bytes, double measured_ms);
  void learn_step(double batch, double context_tokens, double measured_ms) {
    steps_.learn(batch, context_tokens, measured_ms);
  }
  uint64_t step_version() const { return steps_.version(); }  // changes with step_ms
  const StepRate& steps() const { return steps_; }
  void learn_first_step(double step_ms, double measured_ms);
  void advance(Time now);  // what was learned of fetches fades
  // A fetch from the pool as measured. Of one from both tiers memory's share is known already; the
  // nodes of the slower tier share the rest as they are known.
  using PoolTokens = std::map<PoolPlace, uint64_t>;
  void learn_pool(const PoolTokens& tokens, double measured_ms);
  void learn_pool(uint64_t memory_tokens, uint64_t disk_tokens, double measured_ms) {
    learn_pool({{{PoolTier::kMemory}, memory_tokens}, {{PoolTier::kDisk}, disk_tokens}},
               measured_ms);
  }

  double prefill_factor() const { return factor_; }
  double transfer_bytes_per_s() const { return bandwidth_; }
  double fetch_bytes_per_s() const { return fetch_bandwidth_; }
  static constexpr double kPoolRoundTripMs = 1;
  static constexpr double kPoolDiskBytes = 500e6;  // a second
  double pool_bytes_per_s(bool disk) const { return disk ? pool_disk_ : pool_memory_; }
  const HolderRates& pool_holders() const { return holders_; }
  const cost::ModelSpec& spec() const { return spec_; }

 private:
  cost::ModelSpec spec_;
  double factor_ = 1;
  // What the model gives for the prompts that were measured; a little more, as one of a few tokens
  // proves little.
  double seen_ms_ = 7;
  double bandwidth_, fetch_bandwidth_;
  double sent_ = 1;  // of a prompt's KV, on the mean
  Time advanced_{};
  StepRate steps_;
  double first_more_ms_ = 0;
  double pool_memory_, pool_disk_;
  HolderRates holders_;
};

// How many times longer a node's transfers take than what is predicted for all: a node whose link
// is congested is seen, and avoided. What was seen fades, so that it is tried again.
class Congestion {
 public:
  static constexpr double kMax = 1e9;  // more than any factor
  void learn(double predicted_ms, double measured_ms, Time now);
  double factor(Time now) const;  // 1 and more: that a node is faster than others proves nothing

 private:
  double excess(Time now) const;
  double excess_ = 0;  // over 1
  Time seen_{};
};

// How many times longer a node's fetches from each of the others take than what is predicted for
// all pairs. It fades, too. Size: pairs that were slow lately, kPairsMax at most.
class FetchLinks {
 public:
  static constexpr size_t kPairsMax = 256;
  static constexpr double kFaded = 1.05;  // and less is as fast as others

  void learn(const std::string& holder, double predicted_ms, double measured_ms, Time now) {
    std::erase_if(slow_, [&](const auto& pair) { return pair.second.factor(now) < kFaded; });
    if (slow_.size() >= kPairsMax && !slow_.contains(holder)) return;
    slow_[holder].learn(predicted_ms, measured_ms, now);
    ++version_;
  }
  double factor(const std::string& holder, Time now) const {
    const auto it = slow_.find(holder);
    const double seen = it == slow_.end() ? 1 : it->second.factor(now);
    return seen < kFaded ? 1 : seen;
  }
  bool any(Time now) const {  // some pair is slow
    return std::any_of(slow_.begin(), slow_.end(),
                       [&](const auto& pair) { return pair.second.factor(now) >= kFaded; });
  }
  std::vector<std::string> holders() const {  // that were slow lately
    std::vector<std::string> all;
    for (const auto& [holder, seen] : slow_) all.push_back(holder);
    return all;
  }
  uint64_t version() const { return version_; }  // another one when they may be others

 private:
  std::map<std::string, Congestion> slow_;  // by holder
  uint64_t version_ = 0;
};

}  // namespace mc::sched
