#include "base/histogram.h"

#include <algorithm>
#include <bit>

namespace mc {

size_t Histogram::bucket(uint64_t value) {
  if (value < (1u << kSubBits)) return static_cast<size_t>(value);
  const unsigned octave = static_cast<unsigned>(std::bit_width(value)) - kSubBits;
  return (static_cast<size_t>(octave) << kSubBits) +
         static_cast<size_t>((value >> (octave - 1)) & ((2u << kSubBits) - 1)) - (1u << kSubBits);
}

uint64_t Histogram::middle(size_t b) {
  if (b < (1u << kSubBits)) return b;
  const unsigned octave = static_cast<unsigned>(b >> kSubBits);
  const uint64_t low = ((b & ((1u << kSubBits) - 1)) | (1u << kSubBits)) << (octave - 1);
  return low + ((1ull << (octave - 1)) >> 1);
}

void Histogram::record(uint64_t value) {
  ++buckets_[bucket(value)];
  ++count_;
  sum_ += static_cast<double>(value);
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
}

void Histogram::merge(const Histogram& other) {
  for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

uint64_t Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  const uint64_t rank = std::min(
      count_ - 1, static_cast<uint64_t>(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_)));
  if (rank == count_ - 1) return max_;
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen > rank) return std::clamp(middle(i), min_, max_);
  }
  return max_;
}

}  // namespace mc
