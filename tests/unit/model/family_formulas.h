// The logits of a family's model by its formulas: in double precision, a row at a time, from the
// tensors by their names in HF files. Nothing is shared with lib/model.
#pragma once
#include <algorithm>
#include <utility>

#include "family_files.h"

namespace mc::test {
namespace families {

using Row = std::vector<double>;

inline Row times(const NamedTensor& m, const Row& x, size_t first, size_t rows) {
  Row y(rows);
  for (size_t n = 0; n < rows; ++n)
    for (size_t k = 0; k < x.size(); ++k)
      y[n] += double{m.values[(first + n) * x.size() + k]} * x[k];
  return y;
}
inline Row times(const NamedTensor& m, const Row& x) { return times(m, x, 0, m.shape[0]); }

inline Row rms(const Row& x, const NamedTensor& w, bool plus, double eps = 1e-5) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double root = std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / root * (double{w.values[i]} + (plus ? 1 : 0));
  return y;
}

inline double act(const FamilyCase& c, double x) {
  if (!c.gelu) return x / (1 + std::exp(-x));
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

class Formulas {
 public:
  Formulas(const FamilyCase& c, const NamedTensors& t)
      : c_(c), t_(t), keys_(c.layers), values_(c.layers) {}

  Row logits(int32_t token, size_t position) {
    const NamedTensor& embedding = at("model.embed_tokens.weight");
    Row x(c_.hidden);
    for (size_t i = 0; i < c_.hidden; ++i)
      x[i] = c_.embed * embedding.values[static_cast<size_t>(token) * c_.hidden + i];
    for (size_t l = 0; l < c_.layers; ++l) {
      Row out = attention(l, position, norm(l, "input_layernorm", x));
      if (c_.post) out = norm(l, "post_attention_layernorm", out);
      for (size_t i = 0; i < x.size(); ++i) x[i] += out[i];
      out = mlp(l, norm(l, c_.post ? "pre_feedforward_layernorm" : "post_attention_layernorm", x));
      if (c_.post) out = norm(l, "post_feedforward_layernorm", out);
      for (size_t i = 0; i < x.size(); ++i) x[i] += out[i];
    }
    Row all =
        times(c_.tied ? embedding : at("lm_head.weight"), rms(x, at("model.norm.weight"), c_.plus));
    for (double& v : all)
      if (c_.logit_cap > 0) v = c_.logit_cap * std::tanh(v / c_.logit_cap);
    return all;
  }

 private:
  const NamedTensor& at(const std::string& name) const { return t_.at(name); }
  Row norm(size_t l, const char* name, const Row& x) const {
    return rms(x, at(of_layer(l) + name + ".weight"), c_.plus);
  }

  Row project(size_t l, char which, const Row& x) const {
    const size_t q = c_.heads * c_.dim, kv = c_.kv_heads * c_.dim;
    const std::string base = of_layer(l) + "self_attn.";
    if (c_.fused)
      return times(at(base + "qkv_proj.weight"), x,
                   which == 'q'   ? 0
                   : which == 'k' ? q
                                  : q + kv,
                   which == 'q' ? q : kv);
    Row y = times(at(base + which + "_proj.weight"), x);
    for (size_t i = 0; c_.bias && i < y.size(); ++i)
      y[i] += at(base + which + "_proj.bias").values[i];
    return y;
  }

  Row turned(size_t l, char which, Row all, size_t position) const {
    const int turn = c_.turns.empty() ? 0 : c_.turns[l];
    const std::vector<double>& speeds = turn == 1 ? c_.local : c_.speeds;
    for (size_t from = 0; from < all.size(); from += c_.dim) {
      Row head(all.begin() + static_cast<std::ptrdiff_t>(from),
               all.begin() + static_cast<std::ptrdiff_t>(from + c_.dim));
      if (c_.qk_norm)
        head = rms(head, at(of_layer(l) + "self_attn." + which + "_norm.weight"), c_.plus);
      for (size_t j = 0; turn != 2 && j < speeds.size(); ++j) {
        const double angle = speeds[j] * static_cast<double>(position);
        const double a = head[j], b = head[j + speeds.size()];
        head[j] = c_.turn_scale * (a * std::cos(angle) - b * std::sin(angle));
        head[j + speeds.size()] = c_.turn_scale * (b * std::cos(angle) + a * std::sin(angle));
      }
      std::copy(head.begin(), head.end(), all.begin() + static_cast<std::ptrdiff_t>(from));
    }
    return all;
  }

  // Of the last `rope` numbers of a head 0 and 1 turn together, 2 and 3, ..
  void turn_pairs(Row& head, size_t position) const {
    double* const of = head.data() + head.size() - c_.rope;
    for (size_t j = 0; j < c_.rope / 2; ++j) {
      const double angle = c_.speeds[j] * static_cast<double>(position);
      const double a = of[2 * j], b = of[2 * j + 1];
      of[2 * j] = c_.turn_scale * (a * std::cos(angle) - b * std::sin(angle));
      of[2 * j + 1] = c_.turn_scale * (b * std::cos(angle) + a * std::sin(angle));
    }
  }

  // With keys and values of each head, as if there were no latent vector in memory.
  Row latent(size_t l, size_t position, const Row& x) {
    const std::string base = of_layer(l) + "self_attn.";
    const auto part = [](const Row& all, size_t first, size_t n) {
      const auto at = all.begin() + static_cast<std::ptrdiff_t>(first);
      return Row(at, at + static_cast<std::ptrdiff_t>(n));
    };
    const Row q = c_.q_rank == 0 ? times(at(base + "q_proj.weight"), x)
                                 : times(at(base + "q_b_proj.weight"),
                                         rms(times(at(base + "q_a_proj.weight"), x),
                                             at(base + "q_a_layernorm.weight"), false, 1e-6));
    const Row down = times(at(base + "kv_a_proj_with_mqa.weight"), x);
    const Row up =
        times(at(base + "kv_b_proj.weight"),
              rms(part(down, 0, c_.kv_rank), at(base + "kv_a_layernorm.weight"), false, 1e-6));
    Row shared = part(down, c_.kv_rank, c_.rope), keys, values, mixed;
    turn_pairs(shared, position);
    for (size_t h = 0; h < c_.heads; ++h) {
      const Row still = part(up, h * (c_.nope + c_.v), c_.nope);
      const Row value = part(up, h * (c_.nope + c_.v) + c_.nope, c_.v);
      keys.insert(keys.end(), still.begin(), still.end());
      keys.insert(keys.end(), shared.begin(), shared.end());
      values.insert(values.end(), value.begin(), value.end());
    }
    keys_[l].push_back(keys);
    values_[l].push_back(values);
    const size_t dim = c_.nope + c_.rope;
    for (size_t h = 0; h < c_.heads; ++h) {
      Row query = part(q, h * dim, dim), sum(c_.v);
      turn_pairs(query, position);
      double total = 0;
      for (size_t t = 0; t <= position; ++t) {
        double score = 0;
        for (size_t d = 0; d < dim; ++d) score += query[d] * keys_[l][t][h * dim + d];
        const double share = std::exp(score / std::sqrt(c_.scalar));
        total += share;
        for (size_t d = 0; d < c_.v; ++d) sum[d] += share * values_[l][t][h * c_.v + d];
      }
      for (const double s : sum) mixed.push_back(s / total);
    }
    return times(at(base + "o_proj.weight"), mixed);
  }

  Row attention(size_t l, size_t position, const Row& x) {
    if (c_.kv_rank > 0) return latent(l, position, x);
    const Row q = turned(l, 'q', project(l, 'q', x), position);
    keys_[l].push_back(turned(l, 'k', project(l, 'k', x), position));
    values_[l].push_back(project(l, 'v', x));
    const size_t window = c_.windows.empty() ? 0 : c_.windows[l];
    Row mixed(q.size());
    for (size_t h = 0; h < c_.heads; ++h) {
      const size_t kv = h / (c_.heads / c_.kv_heads) * c_.dim;
      Row shares(position + 1);
      double total = 0;
      for (size_t t = 0; t <= position; ++t) {
        if (window > 0 && position - t >= window) continue;
        double score = 0;
        for (size_t d = 0; d < c_.dim; ++d) score += q[h * c_.dim + d] * keys_[l][t][kv + d];
        score /= std::sqrt(c_.scalar);
        if (c_.cap > 0) score = c_.cap * std::tanh(score / c_.cap);
        total += shares[t] = std::exp(score);
      }
      for (size_t t = 0; t <= position; ++t)
        for (size_t d = 0; d < c_.dim; ++d)
          mixed[h * c_.dim + d] += shares[t] / total * values_[l][t][kv + d];
    }
    return times(at(of_layer(l) + "self_attn.o_proj.weight"), mixed);
  }

  Row gated(const NamedTensor& down, const Row& gate, const Row& up) const {
    Row inner(gate.size());
    for (size_t i = 0; i < inner.size(); ++i) inner[i] = act(c_, gate[i]) * up[i];
    return times(down, inner);
  }
  Row dense(const std::string& base, const Row& x) const {
    return gated(at(base + "down_proj.weight"), times(at(base + "gate_proj.weight"), x),
                 times(at(base + "up_proj.weight"), x));
  }

  // Experts of all but the best groups fall behind all others.
  void limit_groups(Row& by) const {
    const size_t each = by.size() / c_.groups;
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < c_.groups; ++g) {
      Row some(by.begin() + static_cast<std::ptrdiff_t>(g * each),
               by.begin() + static_cast<std::ptrdiff_t>((g + 1) * each));
      std::sort(some.rbegin(), some.rend());
      groups.emplace_back(-(some[0] + (c_.sigmoid ? some[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    for (size_t i = c_.groups_used; i < c_.groups; ++i)
      for (size_t k = 0; k < each; ++k) by[groups[i].second * each + k] = -1e9;
  }

  Row mlp(size_t l, const Row& x) const {
    const std::string base = of_layer(l) + "mlp.";
    if (c_.fused) {
      const NamedTensor& both = at(base + "gate_up_proj.weight");
      return gated(at(base + "down_proj.weight"), times(both, x, 0, c_.inner),
                   times(both, x, c_.inner, c_.inner));
    }
    if (!c_.sparse(l)) return dense(base, x);
    Row shares = times(at(router_name(c_, l)), x);
    double all = 0, those = 0;
    for (double& s : shares) all += s = c_.sigmoid ? 1 / (1 + std::exp(-s)) : std::exp(s);
    if (c_.sigmoid) all = 1;
    Row by = shares;
    for (size_t e = 0; c_.sigmoid && e < by.size(); ++e) by[e] += at(router_bias_name(l)).values[e];
    limit_groups(by);
    std::vector<bool> chosen(shares.size());
    for (size_t i = 0; i < c_.used; ++i) {
      size_t best = shares.size();
      for (size_t e = 0; e < shares.size(); ++e)
        if (!chosen[e] && (best == shares.size() || by[e] > by[best])) best = e;
      chosen[best] = true;
      those += shares[best];
    }
    those /= c_.expert_scale;
    all /= c_.expert_scale;
    Row sum(x.size());
    for (size_t e = 0; e < shares.size(); ++e) {
      if (!chosen[e]) continue;
      const std::string expert = of_expert(c_, l, e);
      const Row y = gated(at(expert + down_name(c_)), times(at(expert + gate_name(c_)), x),
                          times(at(expert + up_name(c_)), x));
      for (size_t i = 0; i < y.size(); ++i)
        sum[i] += shares[e] / (c_.normalized ? those : all) * y[i];
    }
    if (c_.shared == 0) return sum;
    if (c_.kv_rank > 0) {
      const Row y = dense(base + "shared_experts.", x);
      for (size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
      return sum;
    }
    const double share = 1 / (1 + std::exp(-times(at(base + "shared_expert_gate.weight"), x)[0]));
    const Row y = dense(base + "shared_expert.", x);
    for (size_t i = 0; i < y.size(); ++i) sum[i] += share * y[i];
    return sum;
  }

  const FamilyCase& c_;
  const NamedTensors& t_;
  std::vector<std::vector<Row>> keys_, values_;
};

}  // namespace families

inline std::vector<std::vector<double>> family_logits(const FamilyCase& c, const NamedTensors& hf,
                                                      const std::vector<int32_t>& tokens) {
  families::Formulas f(c, hf);
  std::vector<std::vector<double>> all;
  for (size_t p = 0; p < tokens.size(); ++p) all.push_back(f.logits(tokens[p], p));
  return all;
}

}  // namespace mc::test
