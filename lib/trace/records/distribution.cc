#include "trace/records/distribution.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/result.h"

namespace mc::trace {

Distribution::Distribution(std::vector<double> values) : sorted_(std::move(values)) {
  std::sort(sorted_.begin(), sorted_.end());
  sum_ = std::accumulate(sorted_.begin(), sorted_.end(), 0.0);
}

double Distribution::mean() const { return empty() ? 0 : sum_ / static_cast<double>(n()); }

double Distribution::deviation() const {
  if (empty()) return 0;
  const double m = mean();
  double squares = 0;
  for (const double v : sorted_) squares += (v - m) * (v - m);
  return std::sqrt(squares / static_cast<double>(n()));
}

double Distribution::percentile(double percent) const {
  if (empty()) return 0;
  const double rank = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(n() - 1);
  const size_t low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, n() - 1);
  return sorted_[low] + (rank - static_cast<double>(low)) * (sorted_[high] - sorted_[low]);
}

double Distribution::share_up_to(double value) const {
  if (empty()) return 0;
  const auto end = std::upper_bound(sorted_.begin(), sorted_.end(), value);
  return static_cast<double>(end - sorted_.begin()) / static_cast<double>(n());
}

double longest_tenth_mean(std::vector<double> gaps) {
  MC_CHECK(!gaps.empty());
  const size_t k = (gaps.size() + 9) / 10;
  const auto end = gaps.begin() + static_cast<std::ptrdiff_t>(k);
  std::partial_sort(gaps.begin(), end, gaps.end(), std::greater<>());
  return std::accumulate(gaps.begin(), end, 0.0) / static_cast<double>(k);
}

}  // namespace mc::trace
