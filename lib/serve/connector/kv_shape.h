// Plans KV transfers between blocks of different tensor-parallel layouts.
//
// A worker of R ranks has blocks of R parts side by side, each what one rank holds:
// [rank][layer][K,V][its kv_heads][token][head_dim]. With one rank that is the plain block. The
// pool always keeps plain blocks, so workers of any number of ranks share it.
//
// Thread: values. Pure. Source: global-prefix-cache chapter 7.6.6.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "cost/model_spec.h"
#include "serve/connector/kv_transfer.h"

namespace mc::serve {

struct KvShape {
  uint32_t ranks = 1;  // of this worker
  uint32_t layers = 0, kv_heads = 0;
  uint64_t head_bytes = 0;  // of one head of one plane: tokens x head_dim x element
  uint64_t block_bytes = 0;
  bool sliced = false;  // these are not all layers of the model
  static KvShape of(const cost::ModelSpec& spec, uint32_t block_tokens, uint32_t ranks);
};

// Checks that KV can move between this worker and one of `peer` ranks. One number must divide the
// other, and the heads; a slice of the layers goes to 1 rank only. `peer` comes from the wire; 0
// (an older worker) is 1. Errors: kInvalid, kUnsupported; the text says what would work.
Result<> check_ranks(const KvShape& shape, uint32_t peer);

// As plan_transfer, to or from blocks of `peer_ranks`. Requires: check_ranks allowed them; a range
// of layers has whole layers.
std::vector<xfer::Request> plan_between(xfer::Op op, std::span<std::byte* const> local,
                                        const KvPeer& peer, uint32_t peer_ranks,
                                        const KvRange& range, const KvShape& shape);

// The parts of a block in the order of the plain, one-rank layout.
template <class Byte>  // std::byte, also const
std::vector<std::span<Byte>> plain_parts(std::span<Byte> block, const KvShape& shape) {
  if (shape.ranks == 1) return {block};
  const size_t part = shape.block_bytes / shape.ranks;
  const size_t run = shape.kv_heads / shape.ranks * shape.head_bytes;  // a plane of a rank
  std::vector<std::span<Byte>> parts;
  for (size_t plane = 0; plane < 2 * size_t{shape.layers}; ++plane)
    for (size_t rank = 0; rank < shape.ranks; ++rank)
      parts.push_back(block.subspan(rank * part + plane * run, run));
  return parts;
}

}  // namespace mc::serve
