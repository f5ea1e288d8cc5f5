// What an application asks of the transfer engine, and what it is told back.
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

// A word in the segment that says which allocation owns the bytes around it. A request that names
// one only moves bytes while the word holds `expected`: a read that finds another value before or
// after, and a write that finds another value before, end as kStale. Offset is 8-byte aligned.
struct Guard {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t offset = kNone;
  uint64_t expected = 0;
};

// `rows` pieces of `bytes` each; the next piece lies `local_stride` and `remote_stride` bytes
// further. One row is the ordinary contiguous request. Layers x blocks is one request, not
// thousands.
struct Request {
  Op op = Op::kRead;
  std::byte* local = nullptr;
  SegmentHandle segment = 0;
  uint64_t offset = 0;  // in the peer's segment
  uint64_t bytes = 0;   // of a row
  uint64_t rows = 1;
  uint64_t local_stride = 0, remote_stride = 0;
  Guard guard;
  Time deadline = Time::max();  // past it the request is kTimedOut and its memory is free again
  Priority priority = Priority::kMedium;  // against other work on the same links
  bool digest = false;  // of a read: its XXH3-64 is wanted, if it can be had on the way
};

// A message to the owner of a segment, told when the bytes before it are there.
struct Notification {
  std::string name;     // at most 255 bytes
  std::string payload;  // at most 64 KiB
  NodeId from;          // of one received: who sent it
};

struct Status {
  TransferState state = TransferState::kWaiting;
  uint64_t bytes_done = 0;
  Error error;  // of kFailed
  // XXH3-64 of what was read, where the request wants it and a transport took it while the bytes
  // were in a cache: tcp does, of a request of one slice. Bytes that two rails may have brought are
  // never told so.
  std::optional<uint64_t> digest{};
};

}  // namespace mc::xfer
