#include "xfer/core/transport.h"

#include <signal.h>

#include <algorithm>

namespace mc::xfer {

const char* name(TransferState state) {
  switch (state) {
    case TransferState::kWaiting: return "waiting";
    case TransferState::kPending: return "pending";
    case TransferState::kCompleted: return "completed";
    case TransferState::kFailed: return "failed";
    case TransferState::kTimedOut: return "timed-out";
    case TransferState::kCancelled: return "cancelled";
  }
  return "?";
}

const BufferInfo* Peer::find(uint64_t offset, uint64_t bytes) const {
  const auto& all = descriptor.buffers;
  auto after = std::upper_bound(all.begin(), all.end(), offset,
                                [](uint64_t o, const BufferInfo& b) { return o < b.offset; });
  if (after != all.begin()) {
    const BufferInfo& b = *std::prev(after);
    const uint64_t at = offset - b.offset;
    if (at <= b.bytes && bytes <= b.bytes - at) return &b;
  }
  return nullptr;
}

Result<const BufferInfo*> Peer::buffer(uint64_t offset, uint64_t bytes) const {
  if (const BufferInfo* found = find(offset, bytes)) return found;
  return fail(Code::kInvalid, "bytes %llu+%llu are outside the segment of %s",
              static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes),
              descriptor.node.c_str());
}

Result<> still_open(const Peer& peer) {
  switch (peer.state.load(std::memory_order_acquire)) {
    case PeerState::kOpen: return {};
    case PeerState::kReplaced:
      return fail(Code::kStale, "the segment of %s has a newer descriptor",
                  peer.descriptor.node.c_str());
    case PeerState::kClosed: break;
  }
  return fail(Code::kUnavailable, "the segment of %s was closed", peer.descriptor.node.c_str());
}

void stop_if_told(const Slice& slice) {
  if (slice.stops && std::atomic_ref<bool>(slice.stops).exchange(false)) (void)::raise(SIGSTOP);
}

Error expired_error(const Slice& slice) {
  return {Code::kTimeout, "transfer with " + slice.peer->descriptor.node + " missed its deadline"};
}
Error cancelled_error(const Slice& slice) {
  return {Code::kUnavailable, "transfer with " + slice.peer->descriptor.node + " was cancelled"};
}

}  // namespace mc::xfer
