// Maps KV heads between workers of different tensor parallelism.
// It says which heads a rank of one side sends to which rank of the other, and where the bytes are
// in their blocks.
//
// A rank's block is [layer][K,V][its kv_heads][token][head_dim]: 2 x layers planes, each as long as
// its heads. A range of heads is one piece of each plane, so one strided request moves it between
// two blocks: rows of the heads' bytes, a plane apart on each side. Whole blocks that are side by
// side on both sides continue the strides and join that request. A layer of such blocks does not:
// the next block's planes are further away.
//
// With fewer KV heads than ranks (MLA has one), ranks hold copies: the first of them sends, and
// every rank of the other side that holds a copy receives one.
//
// Errors: kInvalid for heads that ranks cannot share evenly.
// Thread: values. Pure: no clock, no I/O.
// Source: global-prefix-cache chapter 7.6.6 (its merging of runs is right for equal sides only).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "serve/connector/kv_transfer.h"

namespace mc::serve {

struct HeadSpan {
  uint32_t from = 0, to = 0;  // ranks
  uint32_t from_head = 0;     // first head of the span, among those of rank `from`
  uint32_t to_head = 0;       // the same, among those of rank `to`
  uint32_t heads = 0;
};

// KV heads that one of `ranks` ranks holds: kv_heads / ranks, or 1 copy. Errors: kInvalid.
Result<uint32_t> heads_of_rank(uint32_t kv_heads, uint32_t ranks);
// All spans for `kv_heads` heads, sorted by `from`, then `to`: each head of each receiving rank
// once.
Result<std::vector<HeadSpan>> split_heads(uint32_t kv_heads, uint32_t from_ranks,
                                          uint32_t to_ranks);

struct SplitShape {
  uint32_t layers = 0;
  uint64_t head_bytes = 0;  // of one head of one plane: tokens x head_dim x element
  uint32_t local_heads = 0, peer_heads = 0;  // of the ranks on both sides
  uint32_t local_head = 0, peer_head = 0;    // where the span begins
  uint32_t heads = 0;                        // of the span
};

// Layers [first_layer, last_layer) of the blocks [range.first, range.last); range.at and
// range.bytes are ignored. `local`, `peer` as in plan_transfer, on either side.
std::vector<xfer::Request> plan_split(xfer::Op op, std::span<std::byte* const> local,
                                      const KvPeer& peer, const KvRange& range,
                                      const SplitShape& shape, uint32_t first_layer,
                                      uint32_t last_layer);

}  // namespace mc::serve
