#include "sched/cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mc::sched {
namespace {
constexpr double kWeight = 0.1;  // of the newest measurement
constexpr double kPoolWeight = 0.3;
constexpr double kFactorMax = 100;  // a measurement further off than this is a fault, not a trend
constexpr uint64_t kBytesMin = 64 * 1024;  // below, latency hides the bandwidth
constexpr double kCongestionWeight = 0.3;
constexpr double kTransferMsMin = 1;  // below, most of it is thread scheduling
constexpr double kHalfLife = 10;      // seconds
constexpr double kFirstWeight = 0.1, kFirstMost = 3, kFirstMs = 20;
constexpr double kFetchWeight = 0.3, kFetchHalfLife = 60;

// Of the chunks that a prompt is cut into from `reused` on, how long the longest takes in seconds,
// in all layers. Times grow with the position, but the first has the fixed cost and the last may be
// short.
double longest_chunk(const cost::ModelSpec& spec, uint64_t tokens, uint64_t reused,
                     uint64_t chunk) {
  const auto seconds = [&](uint64_t begin) {
    const auto b = static_cast<double>(begin);
    const auto e = static_cast<double>(std::min(tokens - begin, chunk)) + b;
    const cost::CostModel& c = spec.cost;
    return (begin == reused ? c.c0 : 0) + c.c1 * (e - b) + c.c2 * (e * e - b * b);
  };
  const uint64_t last = reused + (tokens - reused - 1) / chunk * chunk;
  const double longest = std::max(seconds(reused), seconds(last));
  return last == reused ? longest : std::max(longest, seconds(last - chunk));
}

// Of the pool until fetches were measured, in bytes a second. A pool that is thought too slow is
// never read, and so never known better.
double pool_start(const cost::ModelSpec& spec, bool disk) {
  const double network = spec.cost.transfer_bytes_per_s;
  return disk ? std::min(network, Cost::kPoolDiskBytes) : network;
}
}  // namespace

Cost::Cost(cost::ModelSpec spec)
    : spec_(std::move(spec)),
      bandwidth_(spec_.cost.transfer_bytes_per_s),
      fetch_bandwidth_(bandwidth_),
      steps_(spec_.cost),
      pool_memory_(pool_start(spec_, false)),
      pool_disk_(pool_start(spec_, true)) {}

double Cost::prefill_ms(uint64_t tokens, uint64_t reused, const Pipeline& node) const {
  return factor_ * spec_prefill_ms(tokens, reused, node);
}

// In a pipeline the slowest process computes all chunks, one after another; the longest chunk
// passes through the others besides.
double Cost::spec_prefill_ms(uint64_t tokens, uint64_t reused, const Pipeline& node) const {
  const double alone = cost::prefill_seconds(spec_, tokens, reused);
  const uint32_t stages = std::min(node.stages, spec_.layers);
  if (stages <= 1 || tokens <= reused) return 1e3 * alone;
  const uint32_t layers = (spec_.layers + stages - 1) / stages;  // of the slowest
  const double share = static_cast<double>(layers) / spec_.layers;
  const uint64_t chunk = node.chunk_tokens > 0 ? node.chunk_tokens : tokens - reused;
  return 1e3 * (share * alone + (1 - share) * longest_chunk(spec_, tokens, reused, chunk));
}

double Cost::transfer_ms(uint64_t tokens) const {
  return sent_ * send_ms(tokens * spec_.kv_bytes_per_token());
}

double Cost::send_ms(uint64_t bytes) const { return 1e3 * static_cast<double>(bytes) / bandwidth_; }

double Cost::fetch_ms(uint64_t tokens) const {
  return 1e3 * static_cast<double>(tokens * spec_.kv_bytes_per_token()) / fetch_bandwidth_;
}

double Cost::pool_ms(uint64_t memory_tokens, uint64_t disk_tokens) const {
  if (memory_tokens + disk_tokens == 0) return 0;
  const auto bytes = static_cast<double>(spec_.kv_bytes_per_token());
  return kPoolRoundTripMs + 1e3 * bytes *
                                (static_cast<double>(memory_tokens) / pool_memory_ +
                                 static_cast<double>(disk_tokens) / pool_disk_);
}

double Cost::pool_token_ms(const PoolPlace& place) const {
  const double all = 1 / pool_bytes_per_s(place.tier == PoolTier::kDisk);
  return 1e3 * static_cast<double>(spec_.kv_bytes_per_token()) *
         (place.node == 0 ? all : holders_.slow(place, all));
}

// The first prompts count by their length where they are faster than thought: nothing but a faster
// machine makes them so. One that was slower may have been disturbed.
void Cost::learn_prefill(uint64_t tokens, uint64_t reused, double measured_ms,
                         const Pipeline& node) {
  const double model = spec_prefill_ms(tokens, reused, node);
  if (model <= 0 || !std::isfinite(measured_ms) || measured_ms <= 0) return;
  const double seen = std::clamp(measured_ms / model, 1 / kFactorMax, kFactorMax);
  seen_ms_ += model;
  const double weight = seen < factor_ ? std::max(kWeight, model / seen_ms_) : kWeight;
  factor_ += weight * (seen - factor_);
}

void Cost::learn_transfer(uint64_t bytes, double measured_ms, bool whole) {
  if (bytes < kBytesMin || !std::isfinite(measured_ms) || measured_ms <= 0) return;
  const double seen = static_cast<double>(bytes) / (measured_ms * 1e-3);
  const double model = spec_.cost.transfer_bytes_per_s;
  bandwidth_ += kWeight * (std::clamp(seen, model / kFactorMax, model * kFactorMax) - bandwidth_);
  if (whole) fetch_bandwidth_ = bandwidth_;
}

void Cost::learn_sent(uint64_t bytes, uint64_t tokens) {
  const auto whole = static_cast<double>(tokens * spec_.kv_bytes_per_token());
  if (whole > 0) sent_ += kWeight * (std::min(static_cast<double>(bytes) / whole, 1.0) - sent_);
}

// The mean is of seconds a byte: one slow fetch counts for what it took.
void Cost::learn_fetch(uint64_t bytes, double measured_ms) {
  if (bytes < kBytesMin || !std::isfinite(measured_ms) || measured_ms <= 0) return;
  const double model = spec_.cost.transfer_bytes_per_s, much = kFactorMax * kFactorMax;
  const double seen = std::clamp(static_cast<double>(bytes) / (measured_ms * 1e-3), model / much,
                                 model * kFactorMax);
  const double slow = 1 / fetch_bandwidth_;
  fetch_bandwidth_ = 1 / (slow + kFetchWeight * (1 / seen - slow));
}

void Cost::learn_first_step(double step_ms, double measured_ms) {
  if (!std::isfinite(measured_ms) || measured_ms < 0) return;
  const double most = kFirstMost * (step_ms + std::abs(first_more_ms_)) + kFirstMs;  // not a fault
  first_more_ms_ += kFirstWeight * (std::min(measured_ms - step_ms, most) - first_more_ms_);
}

void Cost::advance(Time now) {
  const double seconds = to_seconds(now - std::exchange(advanced_, now));
  if (seconds <= 0) return;
  const double left = std::exp2(-seconds / kFetchHalfLife);
  const auto fade = [left](double& rate, double model) {
    rate = 1 / (1 / model + left * (1 / rate - 1 / model));
  };
  fade(fetch_bandwidth_, spec_.cost.transfer_bytes_per_s);
  fade(pool_memory_, pool_start(spec_, false));
  fade(pool_disk_, pool_start(spec_, true));
  holders_.fade(now,
                [this](PoolTier tier) { return 1 / pool_bytes_per_s(tier == PoolTier::kDisk); });
}

// The time is what adds up: the means are of seconds a byte. A node answers for a change by its
// share of the time.
void Cost::learn_pool(const PoolTokens& all, double measured_ms) {
  if (!std::isfinite(measured_ms)) return;
  const bool disk = std::ranges::any_of(all, [](const auto& entry) {
    return entry.first.tier == PoolTier::kDisk && entry.second > 0;
  });
  const auto slower = [&](const PoolPlace& at) { return (at.tier == PoolTier::kDisk) == disk; };
  double ms = measured_ms - kPoolRoundTripMs, tokens = 0, known_ms = 0;  // of the slower tier
  for (const auto& [place, n] : all) {
    const double took = static_cast<double>(n) * pool_token_ms(place);
    if (slower(place)) {
      tokens += static_cast<double>(n);
      known_ms += took;
    } else {
      ms -= took;
    }
  }
  const auto token = static_cast<double>(spec_.kv_bytes_per_token());
  if (tokens * token < kBytesMin || ms <= 0) return;
  double& rate = disk ? pool_disk_ : pool_memory_;
  const auto believable = [start = pool_start(spec_, disk)](double slow) {
    return std::clamp(slow, 1 / (start * kFactorMax), kFactorMax * kFactorMax / start);
  };
  for (const auto& [place, n] : all) {
    if (place.node == 0 || n == 0 || !slower(place)) continue;
    const double slow = pool_token_ms(place) / (1e3 * token);
    const double share = static_cast<double>(n) * pool_token_ms(place) / known_ms;
    holders_.learn(place, slow + kPoolWeight * share * (believable(ms / known_ms * slow) - slow),
                   advanced_);
  }
  const double slow = 1 / rate;
  rate = 1 / (slow + kPoolWeight * (believable(ms * 1e-3 / (tokens * token)) - slow));
}

void Congestion::learn(double predicted_ms, double measured_ms, Time now) {
  if (!(predicted_ms > 0) || !std::isfinite(measured_ms) || measured_ms < kTransferMsMin) return;
  const double seen = std::clamp(measured_ms / predicted_ms, 1.0, kFactorMax) - 1;
  const double old = factor(now) - 1;
  excess_ = old + kCongestionWeight * (seen - old);
  seen_ = now;
}

double Congestion::excess(Time now) const {
  return excess_ <= 0 ? 0 : excess_ * std::exp2(-to_seconds(now - seen_) / kHalfLife);
}

double Congestion::factor(Time now) const { return 1 + excess(now); }

}  // namespace mc::sched
