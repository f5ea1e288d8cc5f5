// The interface between the engine and its transports. The engine gives a slice to one transport,
// which owns it until it returns it through Sink::finished, exactly once.
//
// Thread: submit() from any; finished() is called on the transport's own threads, or inside
// submit() and its like, on the caller's.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
  uint64_t instance = 0;  // identifies the process; a restarted node has another
  bool same_process = false;
  bool same_host = false;  // and the same user: shared memory may work
  bool has_pid = false;    // its process is the one it names: process_vm may work too
  bool same_net = false;   // its loopback addresses reach it from here
  io::Fd pid;              // of the owner, when same_host
  mutable std::atomic<Time> seen_alive{Time{}};  // when it was last found alive; see host.h
  mutable std::atomic<PeerState> state{PeerState::kOpen};
  // After a refusal, or no answer, its shared memory is not requested again before this time.
  mutable std::atomic<Time> no_mapping_until{Time{}};
  // Returns: the buffer that holds the whole range; null, or kInvalid, when there is none.
  const BufferInfo* find(uint64_t offset, uint64_t bytes) const;
  Result<const BufferInfo*> buffer(uint64_t offset, uint64_t bytes) const;
  MemoryLocation memory_at(uint64_t offset) const;  // of the buffer there; {} where none is known
  // Returns: the offset of a range at this address of the owner. Errors: as Engine::segment_offset.
  Result<uint64_t> offset_at(uint64_t address, uint64_t bytes) const;
  struct Based {  // a buffer whose address is known
    uint64_t address = 0, bytes = 0, offset = 0;
    uint64_t end_before = 0;  // the largest end of this one and those before it
  };
  std::vector<Based> by_address;
  void index_addresses();  // from the descriptor
};
using PeerPtr = std::shared_ptr<const Peer>;

struct Slice {
  Op op = Op::kRead;
  std::byte* local = nullptr;
  Piece piece;  // piece.remote is the offset in the segment; `local` includes piece.local
  uint64_t task_offset = 0;        // of its bytes in the task
  uint64_t batch_bytes = 0;        // of the submit that it belongs to
  MemoryLocation memory;           // NUMA node or GPU of the local bytes
  std::shared_ptr<Buffer> device;  // the local device memory; null: host memory
  Guard guard;
  Time deadline = Time::max();
  Priority priority = Priority::kMedium;
  bool awaited = false;  // the submitting thread waits for this slice, and may move it itself
  bool more_follow =
      false;             // another slice to this peer follows, or flush(): both may leave together
  bool carried = false;  // the submitting thread moved it, or began to; set by the transport
  bool wants_digest = false;       // it is a whole request, and its caller verifies the bytes
  std::optional<uint64_t> digest;  // set by the transport, if wanted and cheap
  bool advances_guard =
      false;               // moves nothing: sets the guard word to guard.expected (op is kWrite)
  uint32_t transport = 0;  // index of its transport in the engine's list
  uint32_t tried_transports = 0;  // a bit for each transport that had it
  uint32_t resends = 0;           // over a new connection of the same transport
  bool refreshed = false;         // its peer's descriptor was fetched anew for it
  mutable bool stops = false;     // a drill: see stop_if_told()
  PeerPtr peer;
  std::shared_ptr<Task> task;
  const std::atomic<bool>* cancelled = nullptr;  // of the task: return the slice soon
  // It moves bytes, behind a guard word that it raises before.
  bool raises_first() const {
    return guard.raises && op == Op::kWrite && guard.offset != Guard::kNone && !advances_guard;
  }
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
  // Returns: this transport can probably move it. The transfer itself may still fail.
  virtual bool reaches(const Peer& peer, uint64_t offset, Op op) const = 0;
  // Returns: it reaches this device memory of this process without copies by the device.
  virtual bool takes(const Buffer& device) const {
    (void)device;
    return false;
  }
  // Fills in the rails to a peer, for display; predictions are for `bytes`.
  virtual void describe(const PeerPtr& peer, uint64_t bytes, Path& path) const {
    (void)peer, (void)bytes, (void)path;
  }
  virtual void submit(SlicePtr slice) = 0;
  // Submits slices of one peer, all reads or all writes, whose caller waits for them next. The
  // transport may move short ones on this thread, until `until` at most, so that none of its own
  // wakes up for them. What has not ended by then goes on as if submitted. Time{}: nobody waits.
  virtual void submit_awaited(std::span<SlicePtr> slices, Time until) {
    (void)until;
    for (SlicePtr& slice : slices) submit(std::move(slice));
  }
  // Sends what it held back because more was to follow. From any thread.
  virtual void flush() {}
  // Moves a few bytes of a waiting caller on this thread, without a queue, if nothing is queued
  // before them. kInFlight: it takes longer, and continues as the slice that `begin` makes, as if
  // submitted. kDeclined: it moved nothing and will not.
  enum class InlineResult : uint8_t { kDeclined, kDone, kInFlight };
  using Begin = std::function<SlicePtr()>;
  virtual InlineResult try_inline(const Request& request, const PeerPtr& peer,
                                  const MemoryLocation& memory, const Begin& begin) {
    (void)request, (void)peer, (void)memory, (void)begin;
    return InlineResult::kDeclined;
  }
  // Drops connections and mappings of a peer that was closed or replaced. It may wait for the
  // transport's threads: never call it from one of them.
  virtual void forget(const PeerPtr& peer) = 0;
  // Joins its threads and fails the slices that it holds. Later slices come back at once.
  virtual void stop() = 0;
};

// kUnavailable when the peer was closed, kStale when a newer descriptor took its place.
Result<> still_open(const Peer& peer);

// A drill's writer stands still here, between its look at the guard and its first byte: SIGSTOP,
// once.
void stop_if_told(const Slice& slice);

Error expired_error(const Slice& slice);    // kTimeout
Error cancelled_error(const Slice& slice);  // kUnavailable

}  // namespace mc::xfer
