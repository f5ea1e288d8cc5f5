#include "xfer/transport.h"

namespace mc::xfer {

const char* name(State state) {
  switch (state) {
    case State::kWaiting: return "waiting";
    case State::kPending: return "pending";
    case State::kCompleted: return "completed";
    case State::kFailed: return "failed";
    case State::kTimedOut: return "timed-out";
    case State::kCancelled: return "cancelled";
  }
  return "?";
}

Result<const BufferInfo*> Peer::buffer(uint64_t offset, uint64_t bytes) const {
  for (const BufferInfo& b : descriptor.buffers) {
    if (offset < b.offset) continue;
    const uint64_t at = offset - b.offset;
    if (at <= b.bytes && bytes <= b.bytes - at) return &b;
  }
  return fail(Code::kInvalid, "bytes %llu+%llu are outside the segment of %s",
              static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes),
              descriptor.node.c_str());
}

Error expired_error(const Slice& slice) {
  return {Code::kTimeout, "transfer with " + slice.peer->descriptor.node + " missed its deadline"};
}
Error cancelled_error(const Slice& slice) {
  return {Code::kUnavailable, "transfer with " + slice.peer->descriptor.node + " was cancelled"};
}

}  // namespace mc::xfer
