#include "serve/connector/kv_shape.h"

#include <algorithm>

#include "base/result.h"
#include "serve/connector/tp_mapping.h"

namespace mc::serve {

KvShape KvShape::of(const cost::ModelSpec& spec, uint32_t block_tokens, uint32_t ranks) {
  return {ranks,
          spec.layers,
          spec.kv_heads,
          uint64_t{block_tokens} * spec.head_dim * spec.element_bytes,
          spec.block_bytes(block_tokens),
          spec.first_layer + spec.layers_after > 0};
}

Result<> check_ranks(const KvShape& shape, uint32_t peer) {
  const uint32_t ranks = std::max(1U, peer), most = std::max(shape.ranks, ranks);
  if (ranks == 1 && shape.ranks == 1) return {};
  if (shape.sliced)
    return fail(Code::kUnsupported,
                "a pipeline does not split KV for %u tensor-parallel ranks: give --tp 1 there",
                ranks);
  if (most <= shape.kv_heads && shape.kv_heads % most == 0 &&
      most % std::min(shape.ranks, ranks) == 0)
    return {};
  return fail(Code::kInvalid,
              "KV of %u tensor-parallel ranks cannot go to or from %u here: of --tp on both sides "
              "one must divide the other, and both the %u KV heads",
              ranks, shape.ranks, shape.kv_heads);
}

std::vector<xfer::Request> plan_between(xfer::Op op, std::span<std::byte* const> local,
                                        const KvPeer& peer, uint32_t peer_ranks,
                                        const KvRange& range, const KvShape& shape) {
  peer_ranks = std::max(1U, peer_ranks);
  const bool whole = range.at == 0 && range.bytes == shape.block_bytes;
  if (peer_ranks == shape.ranks && (whole || peer_ranks == 1))
    return plan_transfer(op, local, peer, range);
  const uint64_t layer = shape.block_bytes / shape.layers;
  MC_CHECK(range.at % layer == 0 && range.bytes % layer == 0);
  const auto first = static_cast<uint32_t>(range.at / layer);
  const auto last = static_cast<uint32_t>((range.at + range.bytes) / layer);
  const auto spans = split_heads(shape.kv_heads, shape.ranks, peer_ranks);
  MC_CHECK(spans.has_value());
  std::vector<xfer::Request> out;
  for (const HeadSpan& span : *spans) {
    std::vector<std::byte*> here(local.begin(), local.end());
    for (std::byte*& block : here) block += span.from * (shape.block_bytes / shape.ranks);
    KvPeer there = peer;
    for (uint64_t& offset : there.offsets) offset += span.to * (shape.block_bytes / peer_ranks);
    const SplitShape split{shape.layers,
                           shape.head_bytes,
                           shape.kv_heads / shape.ranks,
                           shape.kv_heads / peer_ranks,
                           span.from_head,
                           span.to_head,
                           span.heads};
    const auto some = plan_split(op, here, there, range, split, first, last);
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

}  // namespace mc::serve
