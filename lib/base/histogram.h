// A log-bucketed histogram of non-negative numbers: fixed memory, mergeable, quantiles within 2 %.
//
// Thread: one owner. To read from another thread, merge copies there.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace mc {

class Histogram {
 public:
  void record(uint64_t value);
  void merge(const Histogram& other);
  uint64_t count() const { return count_; }
  uint64_t min() const { return count_ ? min_ : 0; }
  uint64_t max() const { return max_; }
  double mean() const { return count_ ? sum_ / static_cast<double>(count_) : 0; }
  double sum() const { return sum_; }
  uint64_t quantile(double q) const;  // q in [0, 1]; 0 when empty

 private:
  static constexpr unsigned kSubBits = 6;  // 64 buckets an octave
  static constexpr size_t kBuckets = (64 - kSubBits + 1) << kSubBits;
  static size_t bucket(uint64_t value);
  static uint64_t middle(size_t bucket);
  std::array<uint64_t, kBuckets> buckets_{};
  uint64_t count_ = 0, min_ = UINT64_MAX, max_ = 0;
  double sum_ = 0;
};

}  // namespace mc
