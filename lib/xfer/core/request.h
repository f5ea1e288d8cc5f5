// Requests to the transfer engine, and the status that it returns.
//
// Thread: values. Source: Mooncake paper, Listing 1; TENT paper section 3 (declarative requests).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/units.h"
#include "xfer/qos/priority_queue.h"

namespace mc::xfer {

enum class Op : uint8_t { kRead, kWrite };  // read: remote to local; write: local to remote

enum class TransferState : uint8_t {
  kWaiting,
  kPending,
  kCompleted,
  kFailed,
  kTimedOut,
  kCancelled
};
const char* name(TransferState state);
constexpr bool finished(TransferState s) { return s >= TransferState::kCompleted; }

using SegmentHandle = uint32_t;  // an open peer segment; from Engine::open_segment
using BatchId = uint64_t;

// A guard word in the segment holds the generation of the allocation around it. A request with a
// guard moves bytes only while the word holds `expected`. It ends as kStale if a read finds another
// value before or after, or a write before. Requires: the offset is 8-byte aligned.
struct Guard {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t offset = kNone;
  uint64_t expected = 0;
  // A write first sets the word to `expected` if that holds less, as Engine::advance_guard() does:
  // one round trip less. Over "tcp", "shm" and "self" alone; elsewhere the word is not changed.
  bool raises = false;
};

// Moves `rows` rows of `bytes` each, which lie `local_stride` and `remote_stride` bytes apart. One
// row is the ordinary contiguous request. Layers x blocks is one request, not thousands.
struct Request {
  Op op = Op::kRead;
  std::byte* local = nullptr;
  SegmentHandle segment = 0;
  uint64_t offset = 0;  // in the peer's segment
  uint64_t bytes = 0;   // of a row
  uint64_t rows = 1;
  uint64_t local_stride = 0, remote_stride = 0;
  Guard guard;
  Time deadline = Time::max();  // then the request is kTimedOut and its memory is free again
  Priority priority = Priority::kMedium;  // among other work on the same links
  bool digest = false;                    // of a read: also compute its XXH3-64, if that is cheap
};

// A message to the owner of a segment, sent after the bytes before it have arrived.
struct Notification {
  std::string name;     // at most 255 bytes
  std::string payload;  // at most 64 KiB
  NodeId from;          // the sender, of a received one
};

struct Status {
  TransferState state = TransferState::kWaiting;
  uint64_t bytes_done = 0;
  Error error;  // of kFailed
  // XXH3-64 of what was read, if the request wants it and the transport computed it while the bytes
  // were in a cache: tcp does, for a request of one slice. Never set if two rails may have written
  // the bytes.
  std::optional<uint64_t> digest{};
};

struct BatchSummary {
  size_t requests = 0, failed = 0;  // failed: did not complete; some may be in flight still
  uint64_t bytes_done = 0;
  Error error{};  // of the first that failed, in the order of submission
};

}  // namespace mc::xfer
