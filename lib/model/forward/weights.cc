#include "model/forward/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>

#include "base/random.h"

namespace mc::model {
namespace {

// Sums over heads and over the intermediate layer are cut so that ranks that own a part of them
// can add theirs in the same order.
uint32_t segments_of(uint32_t columns) { return std::gcd(columns, 8u); }

struct WeightPart {  // rows of one file tensor
  const Tensor* tensor;
  uint32_t rows;
  uint32_t first = 0;  // of the tensor's rows, whatever its dimensions
  // Rows of a head, those from `still` on in pairs (2j, 2j + 1), wanted as (j, j + half); 0: none.
  uint32_t head = 0, still = 0;

  uint32_t row(uint32_t n) const {  // where row n is in the tensor
    if (head == 0 || n % head < still) return first + n;
    const uint32_t half = (head - still) / 2, j = n % head - still;
    return first + n - j + (j < half ? 2 * j : 2 * (j - half) + 1);
  }
};

// Rows [first, first + rows) of a tensor, the other way round: row n is column n of theirs. The
// first row() reads them whole.
class Transposed {
 public:
  Transposed(const Tensor* tensor, uint32_t first, uint32_t rows, uint32_t columns)
      : tensor_(tensor), first_(first), rows_(rows), columns_(columns) {}
  void row(uint32_t n, float* out) {
    std::call_once(once_, [this] {
      values_.resize(size_t{rows_} * columns_);
      for (size_t k = 0; k < rows_; ++k)
        tensor_->read((first_ + k) * columns_, columns_, values_.data() + k * columns_);
    });
    for (size_t k = 0; k < rows_; ++k) out[k] = values_[k * columns_ + n];
  }

 private:
  const Tensor* const tensor_;
  const uint32_t first_, rows_, columns_;
  std::once_flag once_;
  std::vector<float> values_;
};

// What files of a kind call the parts of a layer, after its number.
struct TensorNames {
  const char *q, *k, *v, *fused_qkv, *output, *q_norm, *k_norm;
  const char *attention_norm, *mlp_norm, *post_attention_norm, *post_mlp_norm;
  const char *gate, *up, *down, *fused_gate_up, *router;
  const char *shared_gate, *shared_up, *shared_down, *shared_share;
  const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b, *router_bias;  // DeepSeek's
};
constexpr TensorNames kGgufNames = {
    "attn_q",        "attn_k",          "attn_v",       "attn_qkv",       "attn_output",
    "attn_q_norm",   "attn_k_norm",     "attn_norm",    "ffn_norm",       "post_attention_norm",
    "post_ffw_norm", "ffn_gate",        "ffn_up",       "ffn_down",       "ffn_up",
    "ffn_gate_inp",  "ffn_gate_shexp",  "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_inp_shexp",
    "attn_q_a",      "attn_q_a_norm",   "attn_q_b",     "attn_kv_a_mqa",  "attn_kv_a_norm",
    "attn_kv_b",     "exp_probs_b.bias"};
constexpr TensorNames kHfNames = {"self_attn.q_proj",
                                  "self_attn.k_proj",
                                  "self_attn.v_proj",
                                  "self_attn.qkv_proj",
                                  "self_attn.o_proj",
                                  "self_attn.q_norm",
                                  "self_attn.k_norm",
                                  "input_layernorm",
                                  "post_attention_layernorm",
                                  "post_attention_layernorm",
                                  "post_feedforward_layernorm",
                                  "mlp.gate_proj",
                                  "mlp.up_proj",
                                  "mlp.down_proj",
                                  "mlp.gate_up_proj",
                                  "mlp.gate",
                                  "mlp.shared_expert.gate_proj",
                                  "mlp.shared_expert.up_proj",
                                  "mlp.shared_expert.down_proj",
                                  "mlp.shared_expert_gate",
                                  "self_attn.q_a_proj",
                                  "self_attn.q_a_layernorm",
                                  "self_attn.q_b_proj",
                                  "self_attn.kv_a_proj_with_mqa",
                                  "self_attn.kv_a_layernorm",
                                  "self_attn.kv_b_proj",
                                  "mlp.gate.e_score_correction_bias"};
TensorNames names_of(const ModelConfig& c, bool gguf) {
  TensorNames names = gguf ? kGgufNames : kHfNames;
  if (gguf) return names;
  if (c.parts().post_norms) names.mlp_norm = "pre_feedforward_layernorm";
  if (c.family == Family::kMixtral) names.router = "block_sparse_moe.gate";
  if (c.parts().latent) {
    names.shared_gate = "mlp.shared_experts.gate_proj";
    names.shared_up = "mlp.shared_experts.up_proj";
    names.shared_down = "mlp.shared_experts.down_proj";
  }
  return names;
}

const std::string kBias = ".bias";

class WeightReader {
 public:
  WeightReader(const TensorSet& set, const ModelConfig& config, Naming naming, LayerRange wanted)
      : set_(set),
        c_(config),
        gguf_(naming == Naming::kGguf),
        names_(names_of(config, gguf_)),
        wanted_(wanted) {}

  Result<WeightSources> read() {
    WeightSources w;
    const bool all = wanted_.all(c_.layers);
    if (wanted_.has(0)) {
      MC_TRY(const WeightPart embedding,
             part(gguf_ ? "token_embd.weight" : "model.embed_tokens.weight", c_.vocab, c_.hidden));
      w.embedding = source({embedding}, c_.hidden, 1);
    }
    if (all && !c_.tied) {
      MC_TRY(const WeightPart head,
             part(gguf_ ? "output.weight" : "lm_head.weight", c_.vocab, c_.hidden));
      w.head = source({head}, c_.hidden, 1);
    }
    if (all) {
      MC_TRY(w.norm, norm(gguf_ ? "output_norm.weight" : "model.norm.weight", c_.hidden));
    }
    w.layers.resize(c_.layers);
    for (uint32_t i = 0; i < c_.layers; ++i) {
      if (!wanted_.has(i)) continue;
      layer_ = (gguf_ ? "blk." : "model.layers.") + std::to_string(i) + ".";
      MC_TRY_(c_.parts().latent ? latent_attention(w.layers[i]) : attention(w.layers[i]));
      MC_TRY_(norms(w.layers[i]));
      MC_TRY_(c_.sparse(i) ? experts(w.layers[i]) : mlp(w.layers[i]));
    }
    if (gguf_) MC_TRY_(no_other_bias());
    return w;
  }

 private:
  std::string named(const char* name) const { return layer_ + name + ".weight"; }

  // What is added here of a file's biases is all that it may have.
  Result<> no_other_bias() const {
    std::vector<std::string> added;
    if (c_.qkv_bias())
      for (const char* name : {names_.q, names_.k, names_.v}) added.push_back(name + kBias);
    if (c_.parts().sigmoid) added.push_back(names_.router_bias);
    for (const auto& [name, t] : set_.tensors) {
      const bool in_layer = name.starts_with("blk.");
      const std::string part = in_layer ? name.substr(name.find('.', 4) + 1) : name;
      if (!(in_layer || name.starts_with("output")) || !name.ends_with(kBias) ||
          std::find(added.begin(), added.end(), part) != added.end())
        continue;
      return fail(Code::kUnsupported,
                  "tensor '%s': no such bias is added for this architecture; serve the model with "
                  "an external engine",
                  escape(name).c_str());
    }
    return {};
  }

  Result<> attention(LayerSources& l) {
    MC_TRY(const WeightPart o, part(named(names_.output), c_.hidden, c_.q_rows()));
    l.output = source({o}, c_.q_rows(), segments_of(c_.q_rows()));
    if (c_.parts().fused) {
      const uint32_t rows = c_.q_rows() + 2 * c_.kv_rows();
      MC_TRY(const WeightPart qkv, part(named(names_.fused_qkv), rows, c_.hidden));
      l.qkv = source({qkv}, c_.hidden, 1);
      return {};
    }
    MC_TRY(WeightPart q, part(named(names_.q), c_.q_rows(), c_.hidden));
    MC_TRY(WeightPart k, part(named(names_.k), c_.kv_rows(), c_.hidden));
    MC_TRY(const WeightPart v, part(named(names_.v), c_.kv_rows(), c_.hidden));
    if (gguf_ && c_.parts().pairs) q.head = k.head = c_.head_dim;
    l.qkv = source({q, k, v}, c_.hidden, 1);
    if (c_.qkv_bias()) {
      MC_TRY(l.qkv_bias, qkv_bias());
    }
    return {};
  }

  Result<> latent_attention(LayerSources& l) {
    const Latent& d = c_.latent;
    const uint32_t queries = c_.heads * d.q_dim();
    MC_TRY(const WeightPart o, part(named(names_.output), c_.hidden, c_.mixed_rows()));
    l.output = source({o}, c_.mixed_rows(), segments_of(c_.mixed_rows()));
    MC_TRY(WeightPart kv, part(named(names_.kv_a), c_.head_dim, c_.hidden));
    kv.head = c_.head_dim, kv.still = d.kv_rank;
    const bool direct = d.q_rank == 0;
    MC_TRY(WeightPart q,
           part(named(direct ? names_.q : names_.q_b), queries, direct ? c_.hidden : d.q_rank));
    q.head = d.q_dim(), q.still = d.nope_dim;
    if (direct) {
      l.qkv = source({q, kv}, c_.hidden, 1);
    } else {
      MC_TRY(const WeightPart q_a, part(named(names_.q_a), d.q_rank, c_.hidden));
      l.qkv = source({q_a, kv}, c_.hidden, 1);
      l.query_up = source({q}, d.q_rank, 1);
      MC_TRY(l.query_norm, norm(named(names_.q_a_norm), d.q_rank));
    }
    MC_TRY(l.key_norm, norm(named(names_.kv_a_norm), d.kv_rank));
    return latent_heads(l);
  }

  // Newer GGUF files have keys and values apart, keys the way round that is wanted here.
  Result<> latent_heads(LayerSources& l) {
    const Latent& d = c_.latent;
    const uint32_t each = d.nope_dim + d.v_dim;
    if (gguf_ && set_.tensors.contains(named("attn_k_b"))) {
      MC_TRY(const Tensor* k, set_.find(named("attn_k_b"),
                                        std::array<uint64_t, 3>{c_.heads, d.kv_rank, d.nope_dim}));
      MC_TRY(const Tensor* v,
             set_.find(named("attn_v_b"), std::array<uint64_t, 3>{c_.heads, d.v_dim, d.kv_rank}));
      for (uint32_t h = 0; h < c_.heads; ++h) {
        l.key_up.push_back(source({{k, d.kv_rank, h * d.kv_rank}}, d.nope_dim, 1));
        l.value_up.push_back(source({{v, d.v_dim, h * d.v_dim}}, d.kv_rank, 1));
      }
      return {};
    }
    MC_TRY(const WeightPart both, part(named(names_.kv_b), c_.heads * each, d.kv_rank));
    for (uint32_t h = 0; h < c_.heads; ++h) {
      const auto keys = std::make_shared<Transposed>(both.tensor, h * each, d.nope_dim, d.kv_rank);
      l.key_up.push_back(
          {d.kv_rank, d.nope_dim, 1, [keys](uint32_t n, float* out) { keys->row(n, out); }});
      l.value_up.push_back(source({{both.tensor, d.v_dim, h * each + d.nope_dim}}, d.kv_rank, 1));
    }
    return {};
  }

  Result<> norms(LayerSources& l) {
    MC_TRY(l.attention_norm, norm(named(names_.attention_norm), c_.hidden));
    MC_TRY(l.mlp_norm, norm(named(names_.mlp_norm), c_.hidden));
    if (c_.parts().qk_norm) {
      MC_TRY(l.query_norm, norm(named(names_.q_norm), c_.head_dim));
      MC_TRY(l.key_norm, norm(named(names_.k_norm), c_.head_dim));
    }
    if (c_.parts().post_norms) {
      MC_TRY(l.post_attention_norm, norm(named(names_.post_attention_norm), c_.hidden));
      MC_TRY(l.post_mlp_norm, norm(named(names_.post_mlp_norm), c_.hidden));
    }
    return {};
  }

  Result<> mlp(LayerSources& l) {
    const uint32_t inner = c_.intermediate;
    MC_TRY(const WeightPart down, part(named(names_.down), c_.hidden, inner));
    l.down = source({down}, inner, segments_of(inner));
    if (c_.parts().fused) {
      MC_TRY(const WeightPart both, part(named(names_.fused_gate_up), 2 * inner, c_.hidden));
      l.gate_up = source({both}, c_.hidden, 1);
      return {};
    }
    MC_TRY(const WeightPart gate, part(named(names_.gate), inner, c_.hidden));
    MC_TRY(const WeightPart up, part(named(names_.up), inner, c_.hidden));
    l.gate_up = source({gate, up}, c_.hidden, 1);
    return {};
  }

  Result<> experts(LayerSources& l) {
    MC_TRY(const WeightPart router, part(named(names_.router), c_.experts.count, c_.hidden));
    l.router = source({router}, c_.hidden, 1);
    if (c_.parts().sigmoid) {
      MC_TRY(l.router_bias, vector(layer_ + names_.router_bias, c_.experts.count));
    }
    const uint32_t inner = c_.experts.inner, shared = c_.experts.shared;
    for (uint32_t e = 0; e < c_.experts.count; ++e) {
      MC_TRY(const WeightPart gate, expert(e, "gate", "w1", inner, c_.hidden));
      MC_TRY(const WeightPart up, expert(e, "up", "w3", inner, c_.hidden));
      MC_TRY(const WeightPart down, expert(e, "down", "w2", c_.hidden, inner));
      l.experts.push_back(
          {source({gate, up}, c_.hidden, 1), source({down}, inner, segments_of(inner))});
    }
    if (shared == 0) return {};
    MC_TRY(const WeightPart gate, part(named(names_.shared_gate), shared, c_.hidden));
    MC_TRY(const WeightPart up, part(named(names_.shared_up), shared, c_.hidden));
    MC_TRY(const WeightPart down, part(named(names_.shared_down), c_.hidden, shared));
    l.gate_up = source({gate, up}, c_.hidden, 1);
    l.down = source({down}, shared, segments_of(shared));
    if (c_.parts().latent) return {};
    if (gguf_) {
      MC_TRY(l.shared_gate, vector(named(names_.shared_share), c_.hidden));
      return {};
    }
    MC_TRY(const WeightPart share, part(named(names_.shared_share), 1, c_.hidden));
    l.shared_gate.resize(c_.hidden);
    source({share}, c_.hidden, 1).read(0, l.shared_gate.data());
    return {};
  }

  // A matrix of one expert: a tensor of its own, or a part of one of all experts.
  Result<WeightPart> expert(uint32_t e, const char* name, const char* mixtral, uint32_t rows,
                            uint32_t columns) const {
    if (gguf_) {
      MC_TRY(const Tensor* t, set_.find(layer_ + "ffn_" + name + "_exps.weight",
                                        std::array<uint64_t, 3>{c_.experts.count, rows, columns}));
      return WeightPart{t, rows, e * rows};
    }
    const std::string number = std::to_string(e);
    return part(c_.family == Family::kMixtral
                    ? layer_ + "block_sparse_moe.experts." + number + "." + mixtral + ".weight"
                    : layer_ + "mlp.experts." + number + "." + name + "_proj.weight",
                rows, columns);
  }

  Result<WeightPart> part(const std::string& name, uint32_t rows, uint32_t columns) const {
    MC_TRY(const Tensor* t, set_.find(name, std::array<uint64_t, 2>{rows, columns}));
    return WeightPart{t, rows};
  }
  Result<std::vector<float>> qkv_bias() const {
    std::vector<float> all;
    for (const char* name : {names_.q, names_.k, names_.v}) {
      const uint32_t rows = name == names_.q ? c_.q_rows() : c_.kv_rows();
      MC_TRY(const auto values, vector(layer_ + name + kBias, rows));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  Result<std::vector<float>> norm(const std::string& name, uint32_t n) const {
    MC_TRY(auto values, vector(name, n));
    if (c_.parts().one_plus && !gguf_)  // converters to GGUF have added it
      for (float& v : values) v += 1.0f;
    return values;
  }
  Result<std::vector<float>> vector(const std::string& name, uint32_t n) const {
    MC_TRY(const Tensor* t, set_.find(name, std::array<uint64_t, 1>{n}));
    std::vector<float> values(n);
    t->read(0, values.size(), values.data());
    return values;
  }

  Source source(const std::vector<WeightPart>& parts, uint32_t columns, uint32_t segments) const {
    uint32_t rows = 0;
    for (const WeightPart& p : parts) rows += p.rows;
    const auto read = [parts, columns](uint32_t n, float* out) {
      const WeightPart* p = parts.data();
      for (; n >= p->rows; ++p) n -= p->rows;
      p->tensor->read(size_t{p->row(n)} * columns, columns, out);
    };
    Source source{rows, columns, segments, read};
    for (const WeightPart& p : parts) {
      const BlockFormat* const f = p.tensor->blocks;
      if (f == nullptr || set_.dequantized) {
        source.blocks.clear();
        break;
      }
      const size_t row_bytes = size_t{columns} / f->elements * f->bytes;
      const auto row = [p, row_bytes](uint32_t n, std::vector<std::byte>& scratch) {
        if (!p.tensor->make_row) return p.tensor->bytes.data() + p.row(n) * row_bytes;
        scratch.resize(row_bytes);
        p.tensor->make_row(p.row(n), scratch.data());
        return static_cast<const std::byte*>(scratch.data());
      };
      source.blocks.push_back({f, p.rows, row});
    }
    return source;
  }

  const TensorSet& set_;
  const ModelConfig& c_;
  const bool gguf_;
  const TensorNames names_;
  const LayerRange wanted_;
  std::string layer_;  // what the names of its tensors begin with
};

}  // namespace

size_t Weights::bytes() const {
  size_t n = embedding.bytes() + head.bytes();
  for (const LayerWeights& l : layers) {
    for (const std::vector<Matrix>* heads : {&l.key_up, &l.value_up})
      for (const Matrix& m : *heads) n += m.bytes();
    n += l.query_up.bytes() + l.qkv.bytes() + l.output.bytes() + l.gate_up.bytes() +
         l.down.bytes() + l.router.bytes();
    for (const MlpWeights& e : l.experts) n += e.gate_up.bytes() + e.down.bytes();
  }
  return n;
}

Result<WeightSources> weight_sources(const TensorSet& tensors, const ModelConfig& config,
                                     Naming naming, LayerRange wanted) {
  MC_TRY_(check_config(config));
  return WeightReader(tensors, config, naming, wanted).read();
}

Weights pack_weights(const WeightSources& sources, DType type, ThreadPool& threads) {
  const auto pack = [&](const Source& s) {
    if (s.rows == 0) return Matrix();
    if (!s.blocks.empty()) return Matrix::pack_blocks(s.columns, s.segments, s.blocks, threads);
    return Matrix::pack(s.rows, s.columns, type, s.segments, s.read, threads);
  };
  Weights w{pack(sources.embedding), pack(sources.head), sources.norm, {}};
  for (const LayerSources& from : sources.layers) {
    LayerWeights l;
    static_cast<LayerVectors&>(l) = from;
    l.qkv = pack(from.qkv);
    l.output = pack(from.output);
    l.gate_up = pack(from.gate_up);
    l.down = pack(from.down);
    l.router = pack(from.router);
    l.query_up = pack(from.query_up);
    for (const Source& s : from.key_up) l.key_up.push_back(pack(s));
    for (const Source& s : from.value_up) l.value_up.push_back(pack(s));
    for (const MlpSources& e : from.experts) l.experts.push_back({pack(e.gate_up), pack(e.down)});
    w.layers.push_back(std::move(l));
  }
  return w;
}

Result<Weights> load_weights(const TensorSet& tensors, const ModelConfig& config, Naming naming,
                             DType type, ThreadPool& threads, LayerRange wanted) {
  MC_TRY(const WeightSources sources, weight_sources(tensors, config, naming, wanted));
  return pack_weights(sources, type, threads);
}

DType memory_type(const TensorSet& set) {
  size_t bf16 = 0, other = 0;
  for (const auto& [name, t] : set.tensors) {
    if (t.make_row && t.blocks == nullptr) return DType::kF32;  // bf16 would round its numbers
    (t.type == DType::kBf16 ? bf16 : other) += t.bytes.size();
  }
  return bf16 > other ? DType::kBf16 : DType::kF32;
}

WeightSources random_sources(const ModelConfig& c, uint64_t seed, LayerRange wanted) {
  MC_CHECK(parts_beyond_llama(c).empty());
  uint64_t matrix = 0;
  bool want = true;
  const auto make = [&](uint32_t rows, uint32_t columns, uint32_t segments) {
    const uint64_t key = mix64(seed + mix64(++matrix));  // the same whatever is wanted
    if (!want) return Source();
    const double range = std::sqrt(3.0 / columns);  // variance 1 / columns
    const auto read = [key, range, columns](uint32_t n, float* out) {
      const uint64_t at = mix64(key + n);
      for (uint32_t k = 0; k < columns; ++k) {
        const double unit = static_cast<double>(mix64(at + k) >> 11) * 0x1p-53;
        out[k] = static_cast<float>((2 * unit - 1) * range);
      }
    };
    return Source{rows, columns, segments, read};
  };
  WeightSources w;
  want = wanted.has(0);
  w.embedding = make(c.vocab, c.hidden, 1);
  want = wanted.all(c.layers);
  if (!c.tied) w.head = make(c.vocab, c.hidden, 1);
  w.norm.assign(c.hidden, 1.0f);
  for (uint32_t i = 0; i < c.layers; ++i) {
    LayerSources l;
    want = wanted.has(i);
    l.qkv = make(c.q_rows() + 2 * c.kv_rows(), c.hidden, 1);
    l.output = make(c.hidden, c.q_rows(), segments_of(c.q_rows()));
    l.gate_up = make(2 * c.intermediate, c.hidden, 1);
    l.down = make(c.hidden, c.intermediate, segments_of(c.intermediate));
    l.attention_norm.assign(c.hidden, 1.0f);
    l.mlp_norm.assign(c.hidden, 1.0f);
    if (c.qkv_bias()) {
      l.qkv_bias.resize(c.q_rows() + 2 * c.kv_rows());
      Random random(mix64(seed + i));
      for (float& v : l.qkv_bias) v = static_cast<float>(random.uniform(-1, 1));
    }
    w.layers.push_back(std::move(l));
  }
  return w;
}

Weights random_weights(const ModelConfig& config, uint64_t seed, DType type, ThreadPool& threads,
                       LayerRange wanted) {
  return pack_weights(random_sources(config, seed, wanted), type, threads);
}

ModelConfig tiny_config() {
  const cost::ModelSpec spec = cost::tiny();
  ModelConfig c;
  c.name = spec.name;
  c.vocab = spec.vocab;
  c.hidden = spec.hidden;
  c.intermediate = 384;
  c.layers = spec.layers;
  c.heads = 2 * spec.kv_heads;
  c.kv_heads = spec.kv_heads;
  c.head_dim = spec.head_dim;
  c.context_max = spec.context_max;
  c.norm_eps = 1e-5;
  c.eos = {2};
  return c;
}

ModelConfig bench_config() {
  ModelConfig c;
  c.name = "bench-1b";
  c.vocab = 32000;
  c.hidden = 2048;
  c.intermediate = 5632;
  c.layers = 22;
  c.heads = 32;
  c.kv_heads = 4;
  c.head_dim = 64;
  c.context_max = 8192;
  c.norm_eps = 1e-5;
  return c;
}

}  // namespace mc::model
