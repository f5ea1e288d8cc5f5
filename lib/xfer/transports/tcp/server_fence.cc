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

Server::WriteRange::WriteRange(Connection& c, const Descriptor& covers,
                               std::span<const Descriptor> all)
    : c_(c) {
  {
    Lock lock(c.parts_mutex);
    for (const Descriptor& d : all) c.parts.emplace_back(d.offset, d.offset + d.bytes);
  }
  c.writes_from.store(covers.offset, std::memory_order_relaxed);
  c.writes_to.exchange(covers.offset + covers.bytes, std::memory_order_seq_cst);
}

Server::WriteRange::~WriteRange() {
  leave();
  Lock lock(c_.parts_mutex);
  c_.parts.clear();
}

// A frame that ends meanwhile may count as before: a fence too many is no harm.
bool Server::writes_to(Connection& c, const FencedRange& range) {
  const uint64_t from = c.writes_from.load(std::memory_order_acquire);
  const uint64_t to = c.writes_to.load(std::memory_order_acquire);
  if (!range.meets(from, to)) return false;
  Lock lock(c.parts_mutex);
  return c.parts.empty() || std::any_of(c.parts.begin(), c.parts.end(), [&](const auto& part) {
           return range.meets(part.first, part.second);
         });
}

// What lies in a connection's socket is still applied, then its thread leaves the write.
void Server::fence(std::span<FencedRange> ranges) {
  fence_copies();
  Lock lock(mutex_);
  for (Connection& c : connections_) {
    for (FencedRange& range : ranges) {
      if (!writes_to(c, range)) continue;
      range.done = false;
      c.stream.shut_down();
    }
  }
}

}  // namespace mc::xfer::tcp
