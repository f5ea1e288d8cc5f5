// Pure: joins requests of one submit that are one movement: those that touch on both sides become
// one run of bytes, and runs of equal length at equal distances become one strided request (layers
// x blocks, submitted one by one). Only neighbours are result, so the bytes of a run, row after
// row, are the bytes of its requests, one after another.
//
// Thread: values. Source: TENT's request merging; the strided step is ours.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "xfer/core/request.h"

namespace mc::xfer {

// Which memory a request's two sides lie in; requests are result within one.
struct BufferBase {
  static constexpr uint64_t kUnknown = UINT64_MAX;  // merged with nothing
  uint64_t remote = kUnknown;
  uint64_t local = 0;
  bool operator==(const BufferBase&) const = default;
};

struct MergedRequest {
  Request request;
  size_t first = 0, count = 1;  // of the requests it moves
};

// `bases`: one a request. A run holds at most `bytes_max`, unless one request is longer by itself.
std::vector<MergedRequest> merge(std::span<const Request> requests,
                                 std::span<const BufferBase> bases, uint64_t bytes_max);

struct MergeResult {
  std::vector<MergedRequest> runs;
  std::vector<uint32_t> order;  // the n-th request of the runs is requests[order[n]]; empty: n
};

// The same, in the order of addresses at the peer where that leaves fewer runs: blocks of a cache
// are taken and given back in any order. Only where all go one way, to one peer, with one urgency.
MergeResult merge_by_address(std::span<const Request> requests, std::span<const BufferBase> bases,
                             uint64_t bytes_max);

}  // namespace mc::xfer
