#include "xfer/core/transport.h"

#include <signal.h>

#include <algorithm>

namespace mc::xfer {
namespace {

constexpr uint32_t kIndexMax = 65'535;  // of a NUMA node or GPU; a peer may send anything

// What a peer sent plus one; 0, and what no machine has, is not known.
int index_of(uint32_t sent) { return sent > kIndexMax ? -1 : static_cast<int>(sent) - 1; }

}  // namespace

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

MemoryLocation Peer::memory_at(uint64_t offset) const {
  const BufferInfo* const b = find(offset, 0);
  if (b == nullptr) return {};
  return {index_of(b->node), index_of(b->gpu)};
}

void Peer::index_addresses() {
  for (const BufferInfo& b : descriptor.buffers)
    if (b.base_addr != 0) by_address.push_back({b.base_addr, b.bytes, b.offset, 0});
  std::sort(by_address.begin(), by_address.end(),
            [](const Based& a, const Based& b) { return a.address < b.address; });
  uint64_t end = 0;
  for (Based& b : by_address) b.end_before = end = std::max(end, b.address + b.bytes);
}

Result<uint64_t> Peer::offset_at(uint64_t address, uint64_t bytes) const {
  if (by_address.empty() && !descriptor.buffers.empty())
    return fail(Code::kUnsupported,
                "%s does not tell the addresses of its memory: it needs the option addresses",
                descriptor.node.c_str());
  auto at = std::upper_bound(by_address.begin(), by_address.end(), address,
                             [](uint64_t a, const Based& b) { return a < b.address; });
  bool inside = false;
  // Memory may be registered twice, so a buffer before the nearest one may hold the range.
  while (at != by_address.begin() && std::prev(at)->end_before > address) {
    --at;
    if (address - at->address >= at->bytes) continue;
    inside = true;
    if (bytes <= at->bytes - (address - at->address)) return at->offset + (address - at->address);
  }
  if (inside)
    return fail(Code::kInvalid, "%llu bytes at address %llx of %s end outside its buffer",
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address),
                descriptor.node.c_str());
  return fail(Code::kNotFound, "%s offers no memory at address %llx", descriptor.node.c_str(),
              static_cast<unsigned long long>(address));
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
