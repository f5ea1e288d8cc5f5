// The forward pass again, in double precision, with nothing shared, cached, packed or clever: what
// the transformer is compared with where there are no weights to download.
#pragma once
#include <cmath>
#include <vector>

#include "model/forward/weights.h"

namespace mc::test {

using Vector = std::vector<double>;

inline Vector times(const model::Matrix& m, const Vector& x) {  // row by row, as the file has it
  Vector y(m.rows());
  std::vector<float> row(m.columns());
  for (uint32_t n = 0; n < m.rows(); ++n) {
    m.row(n, row.data());
    for (size_t k = 0; k < row.size(); ++k) y[n] += double{row[k]} * x[k];
  }
  return y;
}

inline Vector norm(const Vector& x, const std::vector<float>& w, double eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
  return y;
}

// Logits of every position.
inline std::vector<Vector> reference(const model::ModelConfig& c, const model::Weights& w,
                                     const std::vector<int32_t>& tokens) {
  const size_t dim = c.head_dim, half = dim / 2, group = c.heads / c.kv_heads;
  const auto speeds = model::rope_frequencies(c.rope, c.head_dim);
  std::vector<std::vector<Vector>> keys(c.layers), values(c.layers);
  std::vector<Vector> all;
  for (size_t p = 0; p < tokens.size(); ++p) {
    std::vector<float> row(c.hidden);
    w.embedding.row(static_cast<uint32_t>(tokens[p]), row.data());
    Vector x(row.begin(), row.end());
    for (size_t l = 0; l < c.layers; ++l) {
      const model::LayerWeights& layer = w.layers[l];
      Vector qkv = times(layer.qkv, norm(x, layer.attention_norm, c.norm_eps));
      for (size_t i = 0; i < layer.qkv_bias.size(); ++i) qkv[i] += layer.qkv_bias[i];
      for (size_t h = 0; h < c.heads + c.kv_heads; ++h)
        for (size_t j = 0; j < half; ++j) {
          const double angle = speeds[j] * static_cast<double>(p);
          double &a = qkv[h * dim + j], &b = qkv[h * dim + j + half];
          const double cosine = c.rope.scale * std::cos(angle),
                       sine = c.rope.scale * std::sin(angle);
          const double turned = a * cosine - b * sine;
          b = b * cosine + a * sine;
          a = turned;
        }
      const auto at = [&](size_t row0) { return qkv.begin() + static_cast<std::ptrdiff_t>(row0); };
      keys[l].emplace_back(at(c.q_rows()), at(c.q_rows() + c.kv_rows()));
      values[l].emplace_back(at(c.q_rows() + c.kv_rows()), qkv.end());
      Vector mixed(c.q_rows());
      for (size_t h = 0; h < c.heads; ++h) {
        const size_t from = h / group * dim;
        Vector score(p + 1);
        double total = 0;
        for (size_t t = 0; t <= p; ++t) {
          double dot = 0;
          for (size_t d = 0; d < dim; ++d) dot += qkv[h * dim + d] * keys[l][t][from + d];
          total += score[t] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
        }
        for (size_t t = 0; t <= p; ++t)
          for (size_t d = 0; d < dim; ++d)
            mixed[h * dim + d] += score[t] / total * values[l][t][from + d];
      }
      const Vector out = times(layer.output, mixed);
      for (size_t i = 0; i < x.size(); ++i) x[i] += out[i];
      const Vector gate_up = times(layer.gate_up, norm(x, layer.mlp_norm, c.norm_eps));
      Vector gated(c.intermediate);
      for (size_t i = 0; i < gated.size(); ++i)
        gated[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[i + c.intermediate];
      const Vector down = times(layer.down, gated);
      for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
    }
    all.push_back(times(c.tied ? w.embedding : w.head, norm(x, w.norm, c.norm_eps)));
  }
  return all;
}

}  // namespace mc::test
