// Computes exact statistics of a set of numbers.
// It keeps and sorts all values; nothing is bucketed. A percentile between two values is
// interpolated linearly (rank p * (n - 1)).
//
// Thread: values; any thread. Pure: arithmetic only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mc::trace {

class Distribution {
 public:
  Distribution() = default;
  explicit Distribution(std::vector<double> values);

  size_t n() const { return sorted_.size(); }
  bool empty() const { return sorted_.empty(); }
  double sum() const { return sum_; }
  // These are 0 for an empty set. Callers check empty() first and print no 0 for it.
  double mean() const;
  double deviation() const;  // of the population
  double min() const { return empty() ? 0 : sorted_.front(); }
  double max() const { return empty() ? 0 : sorted_.back(); }
  double percentile(double percent) const;  // in [0, 100]
  double share_up_to(double value) const;   // fraction of values <= value

 private:
  std::vector<double> sorted_;
  double sum_ = 0;
};

// Time between tokens as the paper reports it: the mean of the longest tenth (rounded up) of the
// gaps. Source: Mooncake, section 7.1. `gaps` must not be empty.
double longest_tenth_mean(std::vector<double> gaps);

}  // namespace mc::trace
