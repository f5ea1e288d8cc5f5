#include "store/node/range_fences.h"

#include <algorithm>

#include "xfer/memory/copy.h"

namespace mc::store {
namespace {

constexpr uint64_t kNarrow = 64 * kKiB;
constexpr Duration kAskAfter = std::chrono::milliseconds(10);

template <class F>
void each_piece_of(const ObjectRecord& record, const F& f) {
  f(record.offset, record.more.empty() ? record.bytes : record.first_bytes);
  for (const Extent& piece : record.more) f(piece.offset, piece.bytes);
}

}  // namespace

// Directly in memory, not through the engine: thousands may come at once.
void RangeFences::raise_guards(const ObjectRecord& record, Generation generation) const {
  each_piece_of(record, [&](uint64_t offset, uint64_t) {  // false: it is already higher
    (void)xfer::raise_guard_word(at_(layout_.guard_of(offset)), generation.n);
  });
}

void RangeFences::forget(const Order& order) {
  raise_guards(order.record, order.fence);
  each_piece_of(order.record, [&](uint64_t offset, uint64_t bytes) {
    ranges_.push_back({offset, bytes, order.seq, order.abandoned, 0, false});
  });
}

// Of a range that is not done only the parts are kept into which a writer may write.
void RangeFences::forget_free(const std::vector<Extent>& free, Generation generation) {
  ranges_.clear();
  std::vector<xfer::FencedRange> open;
  for (const Extent& range : free) {
    open.push_back({range.offset, range.bytes});
    for (uint64_t at = range.offset; at < range.offset + range.bytes; at += kPage)
      (void)xfer::raise_guard_word(at_(layout_.guard_of(at)), generation.n);
  }
  while (!engine_.fence(open)) {
    std::vector<xfer::FencedRange> smaller;
    for (const xfer::FencedRange& range : open) {
      const uint64_t half = range.bytes / 2 / kPage * kPage;
      if (range.done) continue;
      if (half < kNarrow) {
        ranges_.push_back(range);
        continue;
      }
      smaller.push_back({range.offset, half});
      smaller.push_back({range.offset + half, range.bytes - half});
    }
    open = std::move(smaller);
  }
  nics_ = {0, 0, 0, true};
}

bool RangeFences::nics_ended() { return !nics_.unfinished || engine_.fence({&nics_, 1}); }

// Most are done at once, and nearly all others in a moment.
Duration RangeFences::fence(Duration most) {
  const size_t before = ranges_.size();
  engine_.fence(ranges_);
  std::erase_if(ranges_, [](const xfer::FencedRange& range) { return range.done; });
  if (ranges_.empty()) return most;
  ask_after_ = ranges_.size() < before ? kAskAfter : std::min(ask_after_ * 2, most);
  return std::min(ask_after_, most);
}

void RangeFences::tell(Heartbeat& heartbeat, uint64_t done) const {
  heartbeat.done = done;
  uint64_t last = 0;
  for (const xfer::FencedRange& range : ranges_) {
    if (range.id == last) continue;  // another piece; or none of this master's orders
    if (heartbeat.unfenced.size() == kUnfencedMax) {
      heartbeat.done = range.id - 1;
      return;
    }
    last = range.id;
    heartbeat.unfenced.push_back(last);
  }
}

void RangeFences::tell(Inventory& inventory) const {
  for (size_t i = 0; i < std::min(ranges_.size(), kUnfencedMax); ++i)
    inventory.unfenced.push_back({ranges_[i].offset, ranges_[i].bytes, 0});
}

void RangeFences::forget_orders() {
  for (xfer::FencedRange& range : ranges_) range.id = 0;
}

}  // namespace mc::store
