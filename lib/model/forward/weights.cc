#include "model/forward/weights.h"

#include <array>
#include <cmath>
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
  bool interleaved = false;  // rows of a head in pairs (2j, 2j + 1), wanted as (j, j + half)
};

class WeightReader {
 public:
  WeightReader(const TensorSet& set, const ModelConfig& config, Naming naming, LayerRange wanted)
      : set_(set), c_(config), gguf_(naming == Naming::kGguf), wanted_(wanted) {}

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
      MC_TRY(w.norm, vector(gguf_ ? "output_norm.weight" : "model.norm.weight"));
    }
    w.layers.resize(c_.layers);
    for (uint32_t i = 0; i < c_.layers; ++i) {
      if (!wanted_.has(i)) continue;
      MC_TRY(w.layers[i], layer(i));
    }
    return w;
  }

 private:
  Result<LayerSources> layer(uint32_t i) {
    const std::string base = (gguf_ ? "blk." : "model.layers.") + std::to_string(i) + ".";
    const auto named = [&](const char* hf, const char* gguf) {
      return base + (gguf_ ? gguf : hf) + ".weight";
    };
    MC_TRY(WeightPart q, part(named("self_attn.q_proj", "attn_q"), c_.q_rows(), c_.hidden));
    MC_TRY(WeightPart k, part(named("self_attn.k_proj", "attn_k"), c_.kv_rows(), c_.hidden));
    MC_TRY(const WeightPart v, part(named("self_attn.v_proj", "attn_v"), c_.kv_rows(), c_.hidden));
    MC_TRY(const WeightPart o,
           part(named("self_attn.o_proj", "attn_output"), c_.hidden, c_.q_rows()));
    MC_TRY(const WeightPart gate,
           part(named("mlp.gate_proj", "ffn_gate"), c_.intermediate, c_.hidden));
    MC_TRY(const WeightPart up, part(named("mlp.up_proj", "ffn_up"), c_.intermediate, c_.hidden));
    MC_TRY(const WeightPart down,
           part(named("mlp.down_proj", "ffn_down"), c_.hidden, c_.intermediate));
    q.interleaved = k.interleaved = gguf_ && c_.family == Family::kLlama;
    LayerSources l;
    MC_TRY(l.attention_norm, vector(named("input_layernorm", "attn_norm")));
    MC_TRY(l.mlp_norm, vector(named("post_attention_layernorm", "ffn_norm")));
    if (c_.qkv_bias()) {
      MC_TRY(l.qkv_bias, qkv_bias(base));
    }
    l.qkv = source({q, k, v}, c_.hidden, 1);
    l.output = source({o}, c_.q_rows(), segments_of(c_.q_rows()));
    l.gate_up = source({gate, up}, c_.hidden, 1);
    l.down = source({down}, c_.intermediate, segments_of(c_.intermediate));
    return l;
  }

  Result<WeightPart> part(const std::string& name, uint32_t rows, uint32_t columns) const {
    MC_TRY(const Tensor* t, set_.find(name, std::array<uint64_t, 2>{rows, columns}));
    return WeightPart{t, rows};
  }
  Result<std::vector<float>> qkv_bias(const std::string& base) const {
    std::vector<float> all;
    for (const char x : {'q', 'k', 'v'}) {
      const std::string name = gguf_ ? strf("attn_%c.bias", x) : strf("self_attn.%c_proj.bias", x);
      MC_TRY(const auto values, vector(base + name, x == 'q' ? c_.q_rows() : c_.kv_rows()));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  Result<std::vector<float>> vector(const std::string& name) const {
    return vector(name, c_.hidden);
  }
  Result<std::vector<float>> vector(const std::string& name, uint32_t n) const {
    MC_TRY(const Tensor* t, set_.find(name, std::array<uint64_t, 1>{n}));
    std::vector<float> values(n);
    to_floats(*t->type, t->bytes.data(), values.data(), values.size());
    return values;
  }

  Source source(const std::vector<WeightPart>& parts, uint32_t columns, uint32_t segments) const {
    uint32_t rows = 0;
    for (const WeightPart& p : parts) rows += p.rows;
    const uint32_t d = c_.head_dim;
    const auto read = [parts, columns, d](uint32_t n, float* out) {
      const WeightPart* p = parts.data();
      for (; n >= p->rows; ++p) n -= p->rows;
      if (p->interleaved) {
        const uint32_t half = d / 2, j = n % d;
        n = n - j + (j < half ? 2 * j : 2 * (j - half) + 1);
      }
      const DType type = *p->tensor->type;
      to_floats(type, p->tensor->bytes.data() + size_t{n} * columns * size_of(type), out, columns);
    };
    return {rows, columns, segments, read};
  }

  const TensorSet& set_;
  const ModelConfig& c_;
  const bool gguf_;
  const LayerRange wanted_;
};

}  // namespace

size_t Weights::bytes() const {
  size_t n = embedding.bytes() + head.bytes();
  for (const LayerWeights& l : layers)
    n += l.qkv.bytes() + l.output.bytes() + l.gate_up.bytes() + l.down.bytes();
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
    return Matrix::pack(s.rows, s.columns, type, s.segments, s.read, threads);
  };
  Weights w{pack(sources.embedding), pack(sources.head), sources.norm, {}};
  for (const LayerSources& l : sources.layers)
    w.layers.push_back({pack(l.qkv), pack(l.output), pack(l.gate_up), pack(l.down),
                        l.attention_norm, l.mlp_norm, l.qkv_bias});
  return w;
}

Result<Weights> load_weights(const TensorSet& tensors, const ModelConfig& config, Naming naming,
                             DType type, ThreadPool& threads, LayerRange wanted) {
  MC_TRY(const WeightSources sources, weight_sources(tensors, config, naming, wanted));
  return pack_weights(sources, type, threads);
}

DType memory_type(const TensorSet& set) {
  size_t bf16 = 0, other = 0;
  for (const auto& [name, t] : set.tensors)
    (t.type == DType::kBf16 ? bf16 : other) += t.bytes.size();
  return bf16 > other ? DType::kBf16 : DType::kF32;
}

WeightSources random_sources(const ModelConfig& c, uint64_t seed, LayerRange wanted) {
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
