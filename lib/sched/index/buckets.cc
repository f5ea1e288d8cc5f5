#include "sched/index/buckets.h"

namespace mc::sched {
namespace {
constexpr size_t kCellsAhead = 16;  // cells between a bucket's prefetch and its use
// Above 7/8 many buckets overflow; growing by a sixth from there leaves 3/4.
constexpr bool full(size_t used, size_t places) { return used > places / 8 * 7; }
}  // namespace

void IndexBuckets::insert(const IndexCells& cells, At at) {
  if (full(used_ + 1, buckets_.size() * kPlaces)) grow(cells);
  put(cells[at].tag, at);
  ++used_;
}

void IndexBuckets::put(uint64_t tag, At at) {
  const uint64_t hash = mix(tag);
  for (size_t b = home(hash);; b = next(b)) {
    Bucket& bucket = buckets_[b];
    if (const Places open(bucket, 0); open.any()) {
      bucket.prints[open.first()] = print(hash);
      bucket.cells[open.first()] = at;
      return;
    }
    if (bucket.passed < kMany) ++bucket.passed;
  }
}

void IndexBuckets::erase(uint64_t tag, At at) {
  const uint64_t hash = mix(tag);
  --used_;
  for (size_t b = home(hash);; b = next(b)) {
    Bucket& bucket = buckets_[b];
    for (Places left(bucket, print(hash)); left.any(); left.pop())
      if (bucket.cells[left.first()] == at) {
        bucket.prints[left.first()] = 0;
        return;
      }
    if (bucket.passed < kMany) --bucket.passed;
  }
}

// The cells are read in their order, the buckets at random but ahead.
void IndexBuckets::grow(const IndexCells& cells) {
  const size_t wanted = buckets_.size() / 6 * 7;
  buckets_ = {};
  buckets_.resize(wanted);
  for (At at = 0; at < cells.size(); ++at) {
    if (at + kCellsAhead < cells.size()) prefetch(cells[static_cast<At>(at + kCellsAhead)].tag);
    if (cells[at].count > 0) put(cells[at].tag, at);
  }
}

}  // namespace mc::sched
