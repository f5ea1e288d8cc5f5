#include "sched/index/buckets.h"

namespace mc::sched {
namespace {
constexpr size_t kCellsAhead = 2, kBucketsAhead = 6;  // buckets between a prefetch and its use
// Above 7/8 many buckets overflow; growing by a sixth from there leaves 3/4.
constexpr bool full(size_t used, size_t places) { return used > places / 8 * 7; }
constexpr bool soon_full(size_t used, size_t places) { return used > places / 16 * 13; }
}  // namespace

void IndexBuckets::begin_growth() {
  grown_ = size_ / 6 * 7 + size_ % 6;
  while (chunks_.size() * kChunk < grown_) add_chunk();
}

void IndexBuckets::grow_ahead(const IndexCells& cells, size_t buckets) {
  if (!growing() && soon_full(used_, size_ * kPlaces)) begin_growth();
  for (; growing() && buckets > 0; --buckets) move_last(cells);
}

// Half as many inserts again as there are buckets follow until the larger table is full: each that
// moves the keys of one is enough.
void IndexBuckets::insert(const IndexCells& cells, At at) {
  if (full(++used_, size_ * kPlaces)) {
    if (!growing()) begin_growth();
    move_last(cells);
  }
  put(mix(cells[at].tag), at);
}

void IndexBuckets::put(uint64_t hash, At at) {
  for (size_t b = home(hash);; ++b) {
    if (b / kChunk == chunks_.size()) add_chunk();
    Bucket& bucket = bucket_at(b);
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
  for (size_t b = home(hash);; ++b) {
    Bucket& bucket = bucket_at(b);
    for (Places left(bucket, print(hash)); left.any(); left.pop())
      if (bucket.cells[left.first()] == at) {
        bucket.prints[left.first()] = 0;
        return;
      }
    if (bucket.passed < kMany) --bucket.passed;
  }
}

// Keys of the last bucket that is left may stand in the next ones too, among those that moved.
void IndexBuckets::move_last(const IndexCells& cells) {
  read_ahead(cells);
  const size_t last = left_ - 1;
  for (size_t b = last;; ++b) {
    Bucket& bucket = bucket_at(b);
    const bool more = bucket.passed > 0;
    for (size_t i = 0; i < kPlaces; ++i) {
      if (bucket.prints[i] == 0) continue;
      const At at = bucket.cells[i];
      const uint64_t hash = mix(cells[at].tag);
      if (scaled(hash, size_) != last) continue;
      moving_.emplace_back(hash, at);
      bucket.prints[i] = 0;
      for (size_t passed = last; passed < b; ++passed)
        if (Bucket& of = bucket_at(passed); of.passed < kMany) --of.passed;
    }
    if (!more) break;
  }
  left_ = last;
  for (const auto& [hash, at] : moving_) put(hash, at);
  moved_ += moving_.size();
  moving_.clear();
  if (left_ == 0) left_ = size_ = grown_;
}

// The buckets are read in order and written further on, what their cells have is read at random.
void IndexBuckets::read_ahead(const IndexCells& cells) const {
  if (left_ <= kBucketsAhead) return;
  const size_t ahead = left_ - 1 - kBucketsAhead;
  __builtin_prefetch(&bucket_at(ahead), 1);
  __builtin_prefetch(&bucket_at(ahead / 6 * 7), 1);
  const Bucket& bucket = bucket_at(left_ - 1 - kCellsAhead);
  for (size_t i = 0; i < kPlaces; ++i)
    if (bucket.prints[i] != 0) __builtin_prefetch(&cells[bucket.cells[i]]);
}

}  // namespace mc::sched
