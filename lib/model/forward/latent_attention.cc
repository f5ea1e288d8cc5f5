// What latent attention does before and after it goes through KV (transformer.h).
#include <algorithm>
#include <memory>

#include "model/forward/transformer.h"

namespace mc::model {
namespace {

constexpr uint64_t kHeadsAlone = 100'000;  // multiply-adds of all heads, as in matrix.cc

std::unique_ptr<float[]> scratch_floats(size_t n) {
  return std::make_unique_for_overwrite<float[]>(n);
}

// Rows of `n` numbers, each `stride` after the one before, side by side.
std::unique_ptr<float[]> dense_rows(const float* from, size_t stride, size_t rows, size_t n) {
  auto out = scratch_floats(rows * n);
  for (size_t r = 0; r < rows; ++r) std::copy_n(from + r * stride, n, out.get() + r * n);
  return out;
}
void spread_rows(const float* from, size_t rows, size_t n, float* to, size_t stride) {
  for (size_t r = 0; r < rows; ++r) std::copy_n(from + r * n, n, to + r * stride);
}

}  // namespace

// Each head is a part of its own for the threads.
void Transformer::heads(uint64_t work, const std::function<void(size_t)>& one) const {
  if (work >= kHeadsAlone) return threads_.run(config_.heads, one);
  for (size_t h = 0; h < config_.heads; ++h) one(h);
}

// Queries, keys and values of rows, before they are normalized and turned. Without the queries:
// `kv_only`.
void Transformer::project(const LayerWeights& w, const float* x, size_t rows, bool kv_only,
                          float* qkv) const {
  const Latent& l = config_.latent;
  if (l.kv_rank == 0) return w.qkv.multiply(kernels_, threads_, x, rows, qkv, factors_);
  const size_t first = w.qkv.rows(), kv = config_.head_dim, all = row_floats();
  const auto down = scratch_floats(rows * first);
  w.qkv.multiply(kernels_, threads_, x, rows, down.get(), factors_);
  for (size_t r = 0; r < rows; ++r)
    std::copy_n(down.get() + (r + 1) * first - kv, kv, qkv + (r + 1) * all - kv);
  if (kv_only) {
    for (size_t r = 0; r < rows; ++r) std::fill_n(qkv + r * all, config_.q_rows(), 0.0f);
    return;
  }
  const size_t q = config_.heads * size_t{l.q_dim()};
  auto queries = dense_rows(down.get(), first, rows, first - kv);
  if (l.q_rank > 0) {
    for (size_t r = 0; r < rows; ++r) {
      float* const row = queries.get() + r * l.q_rank;
      kernels_.normalize(row, w.query_norm.data(), l.q_rank, Latent::kEps, row);
    }
    auto up = scratch_floats(rows * q);
    w.query_up.multiply(kernels_, threads_, queries.get(), rows, up.get(), factors_);
    queries = std::move(up);
  }
  heads(rows * q * l.kv_rank, [&](size_t h) {
    ThreadPool alone(1);
    const float* const from = queries.get() + h * l.q_dim();
    float* const to = qkv + h * config_.head_dim;
    const auto still = dense_rows(from, q, rows, l.nope_dim);
    const auto absorbed = scratch_floats(rows * l.kv_rank);
    w.key_up[h].multiply(kernels_, alone, still.get(), rows, absorbed.get(), factors_);
    spread_rows(absorbed.get(), rows, l.kv_rank, to, all);
    spread_rows(dense_rows(from + l.nope_dim, q, rows, l.rope_dim).get(), rows, l.rope_dim,
                to + l.kv_rank, all);
  });
}

// Values of all heads, from the latent vectors that each head has mixed.
void Transformer::expand(const LayerWeights& w, const float* attended, size_t rows,
                         float* out) const {
  const Latent& l = config_.latent;
  heads(rows * config_.mixed_rows() * l.kv_rank, [&](size_t h) {
    ThreadPool alone(1);
    const auto mixed =
        dense_rows(attended + h * config_.head_dim, config_.q_rows(), rows, l.kv_rank);
    const auto values = scratch_floats(rows * l.v_dim);
    w.value_up[h].multiply(kernels_, alone, mixed.get(), rows, values.get(), factors_);
    spread_rows(values.get(), rows, l.v_dim, out + h * l.v_dim, config_.mixed_rows());
  });
}

}  // namespace mc::model
