// The seam between the engine and its ways of moving bytes. A Slice is handed to one transport,
// comes back through Sink::finished exactly once, and meanwhile belongs to that transport.
//
// Thread: submit() from any; finished() is called on the transport's own threads.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/fd.h"
#include "xfer/core/messages.h"
#include "xfer/core/path.h"
#include "xfer/core/planner.h"

namespace mc::xfer {

struct Buffer;
struct Task;

enum class PeerState : uint8_t { kOpen, kReplaced, kClosed };

// A peer's segment as of one descriptor. Immutable but for its state; a newer generation is a new
// Peer. Buffers are in ascending order and do not overlap.
struct Peer {
  SegmentDescriptor descriptor;
  uint64_t instance = 0;  // names the process, of which its node may have another one later
  bool same_process = false;
  bool same_host = false;  // and the same user: shared memory and process_vm may be tried
  bool same_net = false;   // and its loopback addresses are ours
  io::Fd pid;              // of the owner, when same_host
  mutable std::atomic<Time> seen_alive{Time{}};  // that process; see host.h
  mutable std::atomic<PeerState> state{PeerState::kOpen};
  // Its shared memory was refused, or it did not answer: not asked before that.
  mutable std::atomic<Time> no_mapping_until{Time{}};
  // The buffer that holds all of a range; null, or kInvalid, when there is none.
  const BufferInfo* find(uint64_t offset, uint64_t bytes) const;
  Result<const BufferInfo*> buffer(uint64_t offset, uint64_t bytes) const;
};
using PeerPtr = std::shared_ptr<const Peer>;

struct Slice {
  Op op = Op::kRead;
  std::byte* local = nullptr;
  Piece piece;  // piece.remote is the offset in the segment; piece.local is used up in `local`
  uint64_t task_offset = 0;        // where its bytes begin among those of its task
  uint64_t batch_bytes = 0;        // bytes that were submitted at once, these among them
  MemoryLocation memory;           // where the local bytes lie
  std::shared_ptr<Buffer> device;  // whose memory they are, of a device; null: the host's
  Guard guard;
  Time deadline = Time::max();
  Priority priority = Priority::kMedium;
  bool awaited = false;  // the submitting thread waits for just this, and may carry it itself
  bool more_follow =
      false;  // another to this peer follows, or flush() does: they may leave together
  bool wants_digest = false;       // it is a whole request, and its caller verifies
  std::optional<uint64_t> digest;  // set by the transport, when that was wanted and cost little
  bool advances_guard =
      false;               // moves nothing: raises the guard word to guard.expected (op is kWrite)
  uint32_t transport = 0;  // the transport that has it, in the engine's list
  uint32_t tried_transports = 0;  // a bit for each transport that had it
  uint32_t resends = 0;           // over a new connection of the same transport
  bool refreshed = false;         // its peer's descriptor was fetched anew for it
  PeerPtr peer;
  std::shared_ptr<Task> task;
  const std::atomic<bool>* cancelled = nullptr;  // of the task: give the slice back soon
};
using SlicePtr = std::unique_ptr<Slice>;

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void finished(SlicePtr slice, Result<> outcome) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  // Could this transport carry it? (A guess; the transfer itself may still fail.)
  virtual bool reaches(const Peer& peer, uint64_t offset, Op op) const = 0;
  // Does it reach this memory of a device, of this process, without copies of the device's own?
  virtual bool takes(const Buffer& device) const {
    (void)device;
    return false;
  }
  // Fills in the rails to a peer, for people; predictions are for `bytes`.
  virtual void describe(const PeerPtr& peer, uint64_t bytes, Path& path) const {
    (void)peer, (void)bytes, (void)path;
  }
  virtual void submit(SlicePtr slice) = 0;
  // What was held back for more to follow goes now. From any thread.
  virtual void flush() {}
  // Carries a few bytes of a caller that waits for them, by itself and at once, where nothing is
  // before them. kInFlight: that takes longer, and goes on as the slice that `begin` makes, as if
  // it had been submitted. kDeclined: nothing of it was moved, or will be.
  enum class InlineResult : uint8_t { kDeclined, kDone, kInFlight };
  using Begin = std::function<SlicePtr()>;
  virtual InlineResult try_inline(const Request& request, const PeerPtr& peer,
                                  const MemoryLocation& memory, const Begin& begin) {
    (void)request, (void)peer, (void)memory, (void)begin;
    return InlineResult::kDeclined;
  }
  // Drops connections and mappings of a peer that was closed or replaced. May wait for its threads:
  // never called from one of them.
  virtual void forget(const PeerPtr& peer) = 0;
  // Joins its threads and fails what it holds; what is submitted later comes back at once.
  virtual void stop() = 0;
};

// kUnavailable when the peer was closed, kStale when a newer descriptor took its place.
Result<> still_open(const Peer& peer);

Error expired_error(const Slice& slice);    // kTimeout
Error cancelled_error(const Slice& slice);  // kUnavailable

}  // namespace mc::xfer
