#include "store/node/range_fences.h"

#include <algorithm>

#include "xfer/memory/copy.h"

namespace mc::store {
namespace {

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
    ranges_.push_back({offset, bytes, order.seq, order.abandoned, false, false});
  });
}

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
