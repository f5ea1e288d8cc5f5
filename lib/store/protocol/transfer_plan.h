// Plans the transfers that move a value between its parts and a replica.
//
// Thread: values.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "store/protocol/messages.h"
#include "xfer/engine.h"

namespace mc::store {

// Calls `f` with the offset, length and guard of each piece of a replica, in order.
template <class F>
void each_piece(const ReplicaLocation& place, uint64_t bytes, const F& f) {
  f(Extent{place.offset, place.more.empty() ? bytes : place.bytes, place.guard});
  for (const Extent& piece : place.more) f(piece);
}

inline Generation generation_at(const ReplicaLocation& place, Generation object) {
  return place.generation ? place.generation : object;
}

// Appends to `out` the requests that move `bytes` between the parts and a replica.
template <class Part>
void append_requests(xfer::Op op, const std::vector<Part>& parts, uint64_t bytes,
                     const ReplicaLocation& place, Generation generation,
                     xfer::SegmentHandle segment, Time deadline, std::vector<xfer::Request>& out) {
  size_t part = 0;
  uint64_t at = 0, left = bytes;  // in the part; of the value
  each_piece(place, bytes, [&](Extent piece) {
    while (piece.bytes > 0 && left > 0 && part < parts.size()) {
      const uint64_t n = std::min({piece.bytes, left, parts[part].size() - at});
      if (n > 0) {
        xfer::Request r;
        r.op = op;
        // A write only reads local memory, but the engine has one request type for both directions.
        r.local = const_cast<std::byte*>(parts[part].data() + at);
        r.segment = segment;
        r.offset = piece.offset;
        r.bytes = n;
        r.guard = {piece.guard, generation_at(place, generation).n, false};
        r.deadline = deadline;
        out.push_back(r);
      }
      piece.offset += n;
      piece.bytes -= n;
      left -= n;
      at += n;
      if (at == parts[part].size()) {
        ++part;
        at = 0;
      }
    }
  });
}

// Appends to `out` the requests that read a range of a value of `bytes` from a replica.
inline void append_range(uint64_t offset, std::span<std::byte> into, uint64_t bytes,
                         const ReplicaLocation& place, Generation generation,
                         xfer::SegmentHandle segment, Time deadline,
                         std::vector<xfer::Request>& out) {
  uint64_t at = 0;  // where the piece begins in the value
  each_piece(place, bytes, [&](const Extent& piece) {
    const uint64_t begin = std::max(at, offset);
    const uint64_t end = std::min(at + piece.bytes, offset + into.size());
    if (begin < end) {
      xfer::Request r;
      r.op = xfer::Op::kRead;
      r.local = into.data() + (begin - offset);
      r.segment = segment;
      r.offset = piece.offset + (begin - at);
      r.bytes = end - begin;
      r.guard = {piece.guard, generation_at(place, generation).n, false};
      r.deadline = deadline;
      out.push_back(r);
    }
    at += piece.bytes;
  });
}

template <class Part>
uint64_t checksum_of(const std::vector<Part>& parts, uint64_t bytes) {
  if (parts.size() == 1) return xxh3(parts[0].data(), std::min<uint64_t>(parts[0].size(), bytes));
  Xxh3Stream hash;
  for (const auto& part : parts) {
    const uint64_t n = std::min<uint64_t>(part.size(), bytes);
    hash.update(part.data(), n);
    bytes -= n;
  }
  return hash.digest();
}

}  // namespace mc::store
