// Ends frames into memory that is about to get another owner.
#include <algorithm>

#include "xfer/core/planner.h"
#include "xfer/memory/copy.h"
#include "xfer/transports/tcp/server.h"

namespace mc::xfer::tcp {

// Either fence() sees the range, or admit() sees that the guard was raised: both store first and
// then look, with a full barrier between.
Server::WriteRange::WriteRange(Connection& c, const Descriptor& d) : c_(c) {
  const uint64_t span = span_of(d.bytes, d.rows, d.stride);
  c.writes_from.store(d.offset, std::memory_order_relaxed);
  c.writes_to.exchange(d.offset + std::min(span, UINT64_MAX - d.offset), std::memory_order_seq_cst);
}

// What lies in a connection's socket is still applied, then its thread leaves the write.
void Server::fence(std::span<FencedRange> ranges) {
  fence_copies();
  Lock lock(mutex_);
  for (Connection& c : connections_) {
    const uint64_t from = c.writes_from.load(std::memory_order_acquire);
    const uint64_t to = c.writes_to.load(std::memory_order_acquire);
    for (FencedRange& range : ranges) {
      if (!range.meets(from, to)) continue;
      range.done = false;
      c.stream.shut_down();
    }
  }
}

}  // namespace mc::xfer::tcp
