#include "serve/connector/pool_rates.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mc::serve {
namespace {
constexpr double kLearn = 0.2;        // weight of the newest observation
constexpr double kRateHalfLife = 60;  // seconds
constexpr Duration kForgotten = std::chrono::minutes(10);
constexpr double kDiskSlow = 2e-9;  // seconds a byte: of a disk, until there is better
constexpr double kSlowMin = 1e-12, kSlowMax = 1e-3;  // seconds a byte; beyond it is a fault
}  // namespace

PoolRates::PoolRates(double memory_bytes_per_s) {
  const double slow = std::clamp(1 / memory_bytes_per_s, kSlowMin, kSlowMax);
  start_.fill(slow);
  start_[static_cast<size_t>(At::kDisk)] = std::max(slow, kDiskSlow);
  slow_ = start_;
}

PoolRates::Bytes PoolRates::of(std::span<const Place> places, uint64_t block_bytes) {
  Bytes bytes;
  for (const Place& place : places) bytes[place] += block_bytes;
  return bytes;
}

double PoolRates::slow(const Place& place) const {
  const auto it = nodes_.find(place);
  return it != nodes_.end() ? it->second.slow : slow_[static_cast<size_t>(place.at)];
}

double PoolRates::fetch_seconds(const Bytes& bytes) const {
  double seconds = round_trip_s_;
  for (const auto& [place, n] : bytes) seconds += static_cast<double>(n) * slow(place);
  return seconds;
}

// Within a run of blocks from one place each costs as much as the one before, while computing one
// costs more the later it is in the prompt. So the best number is where a run ends.
size_t PoolRates::worth(std::span<const Place> places, uint64_t block_bytes,
                        const std::function<double(size_t)>& saved) const {
  size_t best = 0, begin = 0;
  double most = 0, seconds = round_trip_s_;
  for (size_t i = 1; i <= places.size(); ++i) {
    if (i < places.size() && places[i] == places[begin]) continue;
    seconds += static_cast<double>((i - begin) * block_bytes) * slow(places[begin]);
    begin = i;
    const double gain = saved(i) - seconds;
    if (gain <= most) continue;
    most = gain;
    best = i;
  }
  return best;
}

void PoolRates::learn_round_trip(double seconds) {
  round_trip_s_ += kLearn * (seconds - round_trip_s_);
}

// The slowest kind of place explains what the others, as known, leave of its time; its nodes share
// that as they are known. The mean is of seconds a byte: one slow fetch counts for what it took.
void PoolRates::learn(const Bytes& bytes, double seconds) {
  if (!std::isfinite(seconds)) return;
  At slowest{};
  for (const auto& [place, n] : bytes)
    if (n > 0) slowest = std::max(slowest, place.at);
  double sum = 0, predicted = 0;  // of that kind
  for (const auto& [place, n] : bytes) {
    const double took = static_cast<double>(n) * slow(place);
    if (place.at != slowest) {
      seconds -= took;
      continue;
    }
    sum += static_cast<double>(n);
    predicted += took;
  }
  if (sum <= 0 || seconds <= 0) return;  // it was faster than the others alone are known to be
  const double off = seconds / predicted;
  for (const auto& [place, n] : bytes)
    if (place.at == slowest && place.node != 0 && n > 0) learn_node(place, off * slow(place));
  double& all = slow_[static_cast<size_t>(slowest)];
  all += kLearn * (std::clamp(seconds / sum, kSlowMin, kSlowMax) - all);
}

void PoolRates::learn_node(const Place& place, double seen) {
  const double known = slow(place);
  if (nodes_.size() >= kNodesMax && !nodes_.contains(place))
    nodes_.erase(std::min_element(nodes_.begin(), nodes_.end(), [](const auto& a, const auto& b) {
      return a.second.learned < b.second.learned;
    }));
  nodes_[place] = {known + kLearn * (std::clamp(seen, kSlowMin, kSlowMax) - known), now_};
}

// A node's rate goes to that of all, and that to the one at the start.
void PoolRates::advance(Time now) {
  const double seconds = to_seconds(now - std::exchange(now_, now));
  if (seconds <= 0) return;
  const double left = std::exp2(-seconds / kRateHalfLife);
  for (size_t i = 0; i < slow_.size(); ++i) slow_[i] = start_[i] + left * (slow_[i] - start_[i]);
  std::erase_if(nodes_, [&](const auto& node) { return now - node.second.learned > kForgotten; });
  for (auto& [place, node] : nodes_) {
    const double all = slow_[static_cast<size_t>(place.at)];
    node.slow = all + left * (node.slow - all);
  }
}

}  // namespace mc::serve
