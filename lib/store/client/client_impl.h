// What client.cc, client_put.cc and client_get.cc share; nobody else includes it.
//
// Thread: one call.
#pragma once
#include <algorithm>
#include <optional>

#include "base/hash.h"
#include "store/client/client.h"

namespace mc::store {

inline constexpr size_t kChunk = 1024;  // items of one round trip

template <class T>
struct Answer {  // what an item of a batch will be told; empty while it is open
  Result<T> value = fail(Code::kInternal, "not decided");
  bool open = true;
  void set(Result<T> v) {
    value = std::move(v);
    open = false;
  }
};

struct Client::Write {
  const PutItem* item = nullptr;
  uint64_t bytes = 0, checksum = 0;
  PutGrant grant;
  size_t first = 0, count = 0;  // its requests
  bool moved = false;
  bool waits = false;  // the master has no nodes to put it on yet
  Generation tried;    // of the first grant whose end was not answered well: it may be stored
  Answer<PutOutcome> answer;
};

struct Client::Read {
  const GetItem* item = nullptr;
  uint64_t room = 0;
  const Located* at = nullptr;
  xfer::SegmentHandle segment = 0;
  size_t first = 0, count = 0;
  std::optional<uint64_t> checksum{};  // of what arrived, when it was taken on the way
  Answer<uint64_t> answer;
  Error last{Code::kUnavailable, "no replica"};  // of the replicas tried so far
};

// The pieces of a place, in order: where they lie, how long they are, their guards.
template <class F>
void each_piece(const Place& place, uint64_t bytes, const F& f) {
  f(Extent{place.offset, place.more.empty() ? bytes : place.bytes, place.guard});
  for (const Extent& piece : place.more) f(piece);
}

inline Generation generation_at(const Place& place, Generation object) {
  return place.generation ? place.generation : object;
}

// The requests that move `bytes` between the parts and a place, appended to `out`.
template <class Part>
void append_requests(xfer::Op op, const std::vector<Part>& parts, uint64_t bytes,
                     const Place& place, Generation generation, xfer::SegmentHandle segment,
                     Time deadline, std::vector<xfer::Request>& out) {
  size_t part = 0;
  uint64_t at = 0, left = bytes;  // in the part; of the value
  each_piece(place, bytes, [&](Extent piece) {
    while (piece.bytes > 0 && left > 0 && part < parts.size()) {
      const uint64_t n = std::min({piece.bytes, left, parts[part].size() - at});
      if (n > 0) {
        xfer::Request r;
        r.op = op;
        // A write only reads local memory; the engine has one type of request for both directions.
        r.local = const_cast<std::byte*>(parts[part].data() + at);
        r.segment = segment;
        r.offset = piece.offset;
        r.bytes = n;
        r.guard = {piece.guard, generation_at(place, generation).n};
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

// The value, spread over the parts, which have room for it.
inline void scatter(std::span<const std::byte> value, const std::vector<std::span<std::byte>>& to) {
  for (const auto& part : to) {
    const size_t n = std::min(part.size(), value.size());
    std::copy_n(value.begin(), n, part.begin());
    value = value.subspan(n);
  }
}

template <class Part>
uint64_t total_bytes(const std::vector<Part>& parts) {
  uint64_t n = 0;
  for (const auto& part : parts) n += part.size();
  return n;
}

}  // namespace mc::store
