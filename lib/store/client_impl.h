// What client.cc, client_put.cc and client_get.cc share; nobody else includes it.
//
// Thread: one call.
#pragma once
#include <algorithm>

#include "base/hash.h"
#include "store/client.h"

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
  bool redo = false;
  Answer<PutOutcome> answer;
};

struct Client::Read {
  const GetItem* item = nullptr;
  uint64_t room = 0;
  const Located* at = nullptr;
  xfer::SegmentHandle segment = 0;
  size_t first = 0, count = 0;
  Answer<uint64_t> answer;
  Error last{Code::kUnavailable, "no replica"};  // of the replicas tried so far
};

// The requests that move `bytes` between the parts and a place, appended to `out`.
template <class Part>
void append_requests(xfer::Op op, const std::vector<Part>& parts, uint64_t bytes,
                     const Place& place, Generation generation, xfer::SegmentHandle segment,
                     Time deadline, std::vector<xfer::Request>& out) {
  uint64_t at = 0;
  for (const auto& part : parts) {
    const uint64_t n = std::min<uint64_t>(part.size(), bytes - at);
    if (n == 0) continue;
    xfer::Request r;
    r.op = op;
    // A write only reads local memory; the engine has one type of request for both directions.
    r.local = const_cast<std::byte*>(part.data());
    r.segment = segment;
    r.offset = place.offset + at;
    r.bytes = n;
    r.guard = {place.guard, generation.n};
    r.deadline = deadline;
    out.push_back(r);
    at += n;
  }
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

template <class Part>
uint64_t total_bytes(const std::vector<Part>& parts) {
  uint64_t n = 0;
  for (const auto& part : parts) n += part.size();
  return n;
}

}  // namespace mc::store
