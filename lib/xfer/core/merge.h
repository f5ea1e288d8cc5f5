// Merges adjacent requests of one submit into fewer, larger ones. Requests that touch on both sides
// become one contiguous request. Contiguous requests of equal length at equal distances become one
// strided request (layers x blocks, submitted one by one). Only neighbours are merged, so the bytes
// of a merged request, row after row, are the bytes of its requests, one after another.
//
// Pure: decides only. Thread: values. Source: TENT's request merging; the strided step is ours.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "xfer/core/request.h"

namespace mc::xfer {

// Identifies the buffers at both sides of a request. Requests are merged within one buffer only.
struct BufferBase {
  static constexpr uint64_t kUnknown = UINT64_MAX;  // merged with nothing
  uint64_t remote = kUnknown;
  uint64_t local = 0;
  bool operator==(const BufferBase&) const = default;
};

struct MergedRequest {
  Request request;
  size_t first = 0, count = 1;  // of the requests merged into it
};

// Requires: a base for each request. A merged request has at most `bytes_max`, unless a single
// request is longer.
std::vector<MergedRequest> merge(std::span<const Request> requests,
                                 std::span<const BufferBase> bases, uint64_t bytes_max);

struct MergeResult {
  std::vector<MergedRequest> runs;
  std::vector<uint32_t> order;  // the n-th request in `runs` is requests[order[n]]; empty: n
};

// Merges in the order of addresses at the peer if that leaves fewer requests: a cache allocates and
// frees its blocks in any order. Only if all have one operation, peer and priority.
MergeResult merge_by_address(std::span<const Request> requests, std::span<const BufferBase> bases,
                             uint64_t bytes_max);

}  // namespace mc::xfer
