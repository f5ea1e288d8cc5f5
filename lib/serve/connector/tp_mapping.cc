#include "serve/connector/tp_mapping.h"

#include <algorithm>

namespace mc::serve {
namespace {

// The heads that a rank holds; with copies, neighbouring ranks hold the same one.
struct HeadRange {
  uint32_t first = 0, last = 0;
  bool copy = false;  // the rank before holds the same
};

HeadRange range_of(uint32_t kv_heads, uint32_t ranks, uint32_t rank) {
  if (kv_heads >= ranks) {
    const uint32_t each = kv_heads / ranks;
    return {rank * each, (rank + 1) * each, false};
  }
  const uint32_t copies = ranks / kv_heads;
  return {rank / copies, rank / copies + 1, rank % copies != 0};
}

}  // namespace

Result<uint32_t> heads_of_rank(uint32_t kv_heads, uint32_t ranks) {
  if (kv_heads == 0 || ranks == 0 || (kv_heads % ranks != 0 && ranks % kv_heads != 0))
    return fail(Code::kInvalid,
                "%u ranks cannot share %u KV heads: one number must divide the other", ranks,
                kv_heads);
  return std::max(1U, kv_heads / ranks);
}

Result<std::vector<HeadSpan>> split_heads(uint32_t kv_heads, uint32_t from_ranks,
                                          uint32_t to_ranks) {
  for (const uint32_t ranks : {from_ranks, to_ranks}) MC_TRY_(heads_of_rank(kv_heads, ranks));
  std::vector<HeadSpan> spans;
  for (uint32_t from = 0; from < from_ranks; ++from) {
    const HeadRange have = range_of(kv_heads, from_ranks, from);
    if (have.copy) continue;
    for (uint32_t to = 0; to < to_ranks; ++to) {
      const HeadRange want = range_of(kv_heads, to_ranks, to);
      const uint32_t first = std::max(have.first, want.first);
      const uint32_t last = std::min(have.last, want.last);
      if (first < last)
        spans.push_back({from, to, first - have.first, first - want.first, last - first});
    }
  }
  return spans;
}

std::vector<xfer::Request> plan_split(xfer::Op op, std::span<std::byte* const> local,
                                      const KvPeer& peer, const KvRange& range,
                                      const SplitShape& shape, uint32_t first_layer,
                                      uint32_t last_layer) {
  const uint64_t local_plane = shape.local_heads * shape.head_bytes;
  const uint64_t peer_plane = shape.peer_heads * shape.head_bytes;
  const uint64_t planes = 2 * uint64_t{last_layer - first_layer};
  const bool whole = last_layer - first_layer == shape.layers;
  const uint64_t local_block = 2 * shape.layers * local_plane;
  const uint64_t peer_block = 2 * shape.layers * peer_plane;
  std::vector<xfer::Request> out;
  for (size_t i = range.first; i < range.last;) {
    xfer::Request r;
    r.op = op;
    r.local = local[i] + 2 * first_layer * local_plane + shape.local_head * shape.head_bytes;
    r.segment = peer.segment;
    r.offset = peer.offsets[i] + 2 * first_layer * peer_plane + shape.peer_head * shape.head_bytes;
    r.bytes = shape.heads * shape.head_bytes;
    r.guard = peer.guard;
    r.deadline = range.deadline;
    size_t run = 1;
    while (whole && i + run < range.last && local[i + run] == local[i] + run * local_block &&
           peer.offsets[i + run] == peer.offsets[i] + run * peer_block)
      ++run;
    r.rows = planes * run;
    r.local_stride = local_plane;
    r.remote_stride = peer_plane;
    if (local_plane == r.bytes && peer_plane == r.bytes) {  // all heads of both: nothing between
      r.bytes *= r.rows;
      r.rows = 1;
      r.local_stride = r.remote_stride = 0;
    }
    out.push_back(r);
    i += run;
  }
  return out;
}

}  // namespace mc::serve
