#include "model/forward/tensor_parallel.h"

#include <algorithm>
#include <span>

namespace mc::model {
namespace {

struct RowRange {
  size_t begin, end;
};

// The rows of these ranges, one range below the other.
Source rows_of(const Source& whole, const std::vector<RowRange>& ranges) {
  Source part{0, whole.columns, whole.segments, {}, {}};
  for (const RowRange& r : ranges) {
    part.rows += static_cast<uint32_t>(r.end - r.begin);
    size_t first = 0;  // of a part of the file's blocks
    for (const BlockRows& b : whole.blocks) {
      const size_t begin = std::max(r.begin, first), end = std::min(r.end, first + b.rows);
      if (begin < end)
        part.blocks.push_back(
            {b.format, static_cast<uint32_t>(end - begin),
             [row = b.row, at = static_cast<uint32_t>(begin - first)](
                 uint32_t n, std::vector<std::byte>& scratch) { return row(at + n, scratch); }});
      first += b.rows;
    }
  }
  part.read = [read = whole.read, ranges](uint32_t n, float* out) {
    size_t at = n;
    auto r = ranges.begin();
    for (; at >= r->end - r->begin; ++r) at -= r->end - r->begin;
    read(static_cast<uint32_t>(r->begin + at), out);
  };
  return part;
}

Source outputs_of(const Source& whole, TpShare share) {
  if (whole.rows == 0) return {};
  return rows_of(whole, {{share.begin(whole.rows), share.end(whole.rows)}});
}

// Of gate and up, which lie one below the other, the same rows.
MlpSources mlp_of(const Source& gate_up, const Source& down, TpShare share) {
  if (gate_up.rows == 0) return {};
  const size_t inner = gate_up.rows / 2, begin = share.begin(inner), end = share.end(inner);
  return {rows_of(gate_up, {{begin, end}, {inner + begin, inner + end}}), outputs_of(down, share)};
}

// Rows of queries, keys and values, of this rank's heads.
std::vector<RowRange> qkv_ranges(const ModelConfig& c, TpShare share) {
  std::vector<RowRange> ranges;
  size_t first = 0;
  for (const size_t rows : {c.q_rows(), c.kv_rows(), c.kv_rows()}) {
    ranges.push_back({first + share.begin(rows), first + share.end(rows)});
    first += rows;
  }
  return ranges;
}

void latent_of(const LayerSources& whole, const ModelConfig& c, TpShare share, LayerSources& l) {
  const size_t queries = size_t{c.heads} * c.latent.q_dim();
  const RowRange own{share.begin(queries), share.end(queries)};
  if (c.latent.q_rank == 0)
    l.qkv = rows_of(whole.qkv, {own, {queries, whole.qkv.rows}});
  else
    l.query_up = rows_of(whole.query_up, {own});
  const auto heads = [&](const std::vector<Source>& all) {
    return std::vector<Source>(all.begin() + static_cast<ptrdiff_t>(share.begin(c.heads)),
                               all.begin() + static_cast<ptrdiff_t>(share.end(c.heads)));
  };
  l.key_up = heads(whole.key_up);
  l.value_up = heads(whole.value_up);
}

LayerSources layer_of(const LayerSources& whole, const ModelConfig& c, TpShare share) {
  LayerSources l;
  static_cast<LayerVectors&>(l) = whole;
  if (c.latent.kv_rank > 0) {
    l.qkv = whole.qkv;
    latent_of(whole, c, share, l);
  } else {
    const std::vector<RowRange> ranges = qkv_ranges(c, share);
    l.qkv = rows_of(whole.qkv, ranges);
    l.qkv_bias.clear();
    for (const RowRange& r : ranges)
      if (!whole.qkv_bias.empty())
        l.qkv_bias.insert(l.qkv_bias.end(), whole.qkv_bias.data() + r.begin,
                          whole.qkv_bias.data() + r.end);
  }
  l.output = outputs_of(whole.output, share);
  l.router = whole.router;
  MlpSources mlp = mlp_of(whole.gate_up, whole.down, share);
  l.gate_up = std::move(mlp.gate_up);
  l.down = std::move(mlp.down);
  for (const MlpSources& e : whole.experts) l.experts.push_back(mlp_of(e.gate_up, e.down, share));
  return l;
}

}  // namespace

Result<> check_tp(const ModelConfig& c, uint32_t ranks) {
  const bool latent = c.latent.kv_rank > 0;
  const uint32_t heads = latent ? c.heads : c.kv_heads;
  uint32_t least = std::min(c.hidden, c.vocab);  // no rank may be without an output
  for (const uint32_t inner : {c.intermediate, c.experts.inner, c.experts.shared})
    if (inner > 0) least = std::min(least, inner);
  if (ranks == 0 || heads % ranks != 0 || ranks > least)
    return fail(Code::kInvalid, "--tp %u: want a number that divides the %u %s of %s", ranks, heads,
                latent ? "heads" : "KV heads", c.name.c_str());
  return {};
}

ModelConfig config_of(const ModelConfig& config, TpShare share) {
  ModelConfig c = config;
  c.heads /= share.ranks;
  if (c.latent.kv_rank == 0) c.kv_heads /= share.ranks;
  c.tied = false;
  return c;
}

WeightSources share_of(const WeightSources& whole, const ModelConfig& config, TpShare share) {
  WeightSources w;
  if (share.rank == 0) w.embedding = whole.embedding;
  w.head = outputs_of(config.tied ? whole.embedding : whole.head, share);
  w.norm = whole.norm;
  for (const LayerSources& layer : whole.layers) w.layers.push_back(layer_of(layer, config, share));
  return w;
}

}  // namespace mc::model
