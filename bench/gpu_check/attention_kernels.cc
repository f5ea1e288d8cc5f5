// Attention over KV in blocks: what is stored and what it gives, against a reference in double on
// the host, then decode steps against the memory's speed, and prompts against the plain kernel.
#include <algorithm>
#include <numeric>

#include "bench/gpu_check/bed.h"

namespace mc::gpu_check {
namespace {

struct Heads {
  uint32_t heads, kv_heads, dim, block_tokens;
  uint32_t row() const { return (heads + 2 * kv_heads) * dim; }
  uint32_t plane() const { return block_tokens * dim; }
};

// Sequences in blocks that lie anywhere; the second of two layers is used.
struct Paged {
  Heads h;
  DType type;
  std::vector<uint32_t> lengths;
  uint32_t width = 0;
  uint64_t layer = 0;
  std::vector<uint64_t> table;
  Buffer kv, places;

  static Result<Paged> make(Bed& bed, Heads h, DType type, std::vector<uint32_t> lengths) {
    Paged p{h, type, std::move(lengths), 0, 0, {}, {}, {}};
    p.layer = 2ull * h.kv_heads * h.plane() * size_of(type);
    for (const uint32_t n : p.lengths)
      p.width = std::max(p.width, static_cast<uint32_t>(over(n, h.block_tokens)));
    const uint64_t blocks = p.lengths.size() * p.width;
    for (uint64_t i = 0; i < blocks; ++i) p.table.push_back((blocks - 1 - i) * 2 * p.layer);
    MC_TRY(p.kv, bed.device->allocate(blocks * 2 * p.layer));
    MC_TRY(p.places, bed.put(p.table.data(), p.table.size() * 8));
    return p;
  }
  char* base() const { return reinterpret_cast<char*>(kv.data()); }
  const uint64_t* list() const { return reinterpret_cast<const uint64_t*>(places.data()); }
  // Number of a value among those of kv.
  size_t index(uint32_t sequence, uint32_t plane, uint32_t position, uint32_t d) const {
    const uint64_t at = table[sequence * width + position / h.block_tokens] + layer;
    return at / size_of(type) +
           (size_t{plane} * h.block_tokens + position % h.block_tokens) * h.dim + d;
  }
};

std::vector<mc_row> rows_of(const std::vector<uint32_t>& lengths, bool all) {
  std::vector<mc_row> rows;
  for (uint32_t s = 0; s < lengths.size(); ++s)
    for (uint32_t p = all ? 0 : lengths[s] - 1; p < lengths[s]; ++p) rows.push_back({0, p, s, 0});
  return rows;
}

Result<> store(Bed& bed, const Paged& p, const Buffer& qkv, const std::vector<mc_row>& rows,
               const Buffer& list, bool neighbours, const float* bias = nullptr) {
  Values turns;
  for (const mc_row& row : rows)
    for (uint32_t j = 0; j < p.h.dim / 2; ++j) {
      const double angle = row.position * std::pow(10000.0, -2.0 * j / p.h.dim);
      turns.push_back(static_cast<float>(std::cos(angle)));
      turns.push_back(static_cast<float>(std::sin(angle)));
    }
  MC_TRY(const Buffer angles, bed.put(turns, DType::kF32));
  return bed.run(named(MC_STORE, p.type), {rows.size()}, at(qkv), bias, rows_at(list), at(angles),
                 p.base(), p.list(), p.width, p.layer, p.h.heads, p.h.kv_heads, p.h.dim,
                 p.h.block_tokens, neighbours ? 1u : 0u);
}

// Keys turned by hand, values as they were, after what is added to both.
Result<> check_store(Bed& bed, DType type, bool neighbours, bool biased) {
  const Heads h{6, 2, 20, 8};
  MC_TRY(const Paged p, Paged::make(bed, h, type, {13, 30}));
  const auto rows = rows_of(p.lengths, true);
  Values before = numbers(rows.size() * h.row(), 1);
  const Values bias = numbers(h.row(), 2);
  MC_TRY(const Buffer qkv, bed.put(before, DType::kF32));
  MC_TRY(const Buffer added, bed.put(bias, DType::kF32));
  MC_TRY(const Buffer list, bed.put(rows.data(), rows.size() * sizeof(mc_row)));
  MC_TRY_(store(bed, p, qkv, rows, list, neighbours, biased ? at(added) : nullptr));
  for (size_t i = 0; biased && i < before.size(); ++i) before[i] += bias[i % h.row()];
  MC_TRY(const Values kv, bed.get(p.kv, type));
  Values got;
  std::vector<double> want;
  for (size_t r = 0; r < rows.size(); ++r)
    for (uint32_t plane = 0; plane < 2 * h.kv_heads; ++plane)
      for (uint32_t d = 0; d < h.dim; ++d) {
        const float* const head = &before[r * h.row() + (h.heads + plane) * h.dim];
        got.push_back(kv[p.index(rows[r].sequence, plane, rows[r].position, d)]);
        if (plane >= h.kv_heads) {
          want.push_back(head[d]);
          continue;
        }
        const uint32_t half = h.dim / 2, j = neighbours ? d / 2 : d % half;
        const bool first = neighbours ? d % 2 == 0 : d < half;
        const double angle = rows[r].position * std::pow(10000.0, -2.0 * j / h.dim);
        const double x = head[neighbours ? 2 * j : j], y = head[neighbours ? 2 * j + 1 : j + half];
        want.push_back(first ? x * std::cos(angle) - y * std::sin(angle)
                             : y * std::cos(angle) + x * std::sin(angle));
      }
  return near(got, want, tolerance_of(type), named(MC_STORE, type));
}

// What each query gets, in double.
std::vector<double> attention(const Paged& p, const std::vector<mc_row>& rows, const Values& qkv,
                              const Values& kv) {
  const Heads& h = p.h;
  std::vector<double> out;
  for (size_t r = 0; r < rows.size(); ++r)
    for (uint32_t head = 0; head < h.heads; ++head) {
      const float* const q = &qkv[r * h.row() + head * h.dim];
      const uint32_t kv_head = head / (h.heads / h.kv_heads);
      std::vector<double> scores, sums(h.dim);
      for (uint32_t t = 0; t <= rows[r].position; ++t) {
        double dot = 0;
        for (uint32_t d = 0; d < h.dim; ++d)
          dot += double{q[d]} * kv[p.index(rows[r].sequence, kv_head, t, d)];
        scores.push_back(dot / std::sqrt(static_cast<double>(h.dim)));
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (uint32_t t = 0; t <= rows[r].position; ++t) {
        const double share = std::exp(scores[t] - most);
        total += share;
        for (uint32_t d = 0; d < h.dim; ++d)
          sums[d] += share * kv[p.index(rows[r].sequence, h.kv_heads + kv_head, t, d)];
      }
      for (const double s : sums) out.push_back(s / total);
    }
  return out;
}

struct Attended {
  bool tensor = false, split = false;
  uint32_t together = 1;  // rows of a group
  bool prompt = false;    // by groups of MC_PROMPT_QUERIES
};

Result<> attend(Bed& bed, const Paged& p, Attended how, const Buffer& qkv, const Buffer& out,
                const Buffer& parts, const Buffer& list, size_t rows) {
  const Heads& h = p.h;
  const float scale = 1.0f / std::sqrt(static_cast<float>(h.dim));
  const auto n = static_cast<uint32_t>(rows);
  if (!how.tensor)
    return bed.run(named(MC_ATTEND, p.type), {rows, h.heads}, at(qkv), at(out), rows_at(list),
                   p.base(), p.list(), p.width, p.layer, h.heads, h.kv_heads, h.dim, h.block_tokens,
                   scale);
  if (how.prompt)
    return bed.run(named(MC_PROMPT, p.type), {over(rows, how.together), h.kv_heads}, at(qkv),
                   at(out), rows_at(list), p.base(), p.list(), p.width, p.layer, h.heads,
                   h.kv_heads, h.dim, h.block_tokens, scale, n, how.together);
  const uint32_t longest = *std::max_element(p.lengths.begin(), p.lengths.end());
  const size_t splits = how.split ? over(longest, MC_SPLIT) : 1;
  return finish(*bed.stream, [&]() -> Result<> {
    MC_TRY_(launch(*bed.stream, named(MC_FLASH, p.type),
                   {over(rows, how.together), h.kv_heads, splits}, at(qkv), at(out),
                   how.split ? at(parts) : nullptr, rows_at(list), p.base(), p.list(), p.width,
                   p.layer, h.heads, h.kv_heads, h.dim, h.block_tokens, scale, n, how.together));
    if (!how.split) return {};
    return launch(*bed.stream, MC_COMBINE, {rows, h.heads}, at(parts), at(out), rows_at(list),
                  h.dim, static_cast<uint32_t>(splits));
  });
}

Result<> check_attend(Bed& bed, DType type, Attended how, uint32_t dim = 96) {
  const Heads h = how.tensor ? Heads{10, 2, dim, 16} : Heads{6, 2, 20, 8};
  const bool step = how.tensor && how.together == 1;
  MC_TRY(const Paged p, Paged::make(bed, h, type,
                                    step ? std::vector<uint32_t>{1, 600, 257, 40}
                                         : std::vector<uint32_t>{how.tensor ? 300u : 90u}));
  const auto all = rows_of(p.lengths, true), rows = rows_of(p.lengths, !step);
  MC_TRY(const Buffer filling, bed.put(numbers(all.size() * h.row(), 2), DType::kF32));
  MC_TRY(const Buffer all_list, bed.put(all.data(), all.size() * sizeof(mc_row)));
  MC_TRY_(store(bed, p, filling, all, all_list, false));
  const Values qkv = numbers(rows.size() * h.row(), 3);
  MC_TRY(const Buffer queries, bed.put(qkv, DType::kF32));
  MC_TRY(const Buffer list, bed.put(rows.data(), rows.size() * sizeof(mc_row)));
  MC_TRY(const Buffer out, bed.device->allocate(rows.size() * h.heads * h.dim * 4));
  MC_TRY(const Buffer parts, bed.device->allocate(rows.size() * h.heads * 3 * (h.dim + 2) * 4));
  MC_TRY_(attend(bed, p, how, queries, out, parts, list, rows.size()));
  MC_TRY(const Values kv, bed.get(p.kv, type));
  MC_TRY(const Values got, bed.get(out, DType::kF32));
  const std::string name = named(how.prompt ? MC_PROMPT : how.tensor ? MC_FLASH : MC_ATTEND, type);
  MC_TRY_(near(got, attention(p, rows, qkv, kv), how.tensor ? tolerance_of(type) : 1e-5, name));
  if (!how.prompt) return {};
  MC_TRY_(attend(bed, p, {.tensor = true, .together = 3}, queries, out, parts, list, rows.size()));
  MC_TRY(const Values other, bed.get(out, DType::kF32));
  if (got == other) return {};
  return fail(Code::kCorrupt, "%s: bits are not those of %s", name.c_str(), MC_FLASH);
}

Result<> check_attention(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  for (const DType type : kTypes) {
    for (const bool neighbours : {false, true}) MC_TRY_(check_store(bed, type, neighbours, false));
    MC_TRY_(check_store(bed, type, false, true));
    MC_TRY_(check_attend(bed, type, {}));
    if (type == DType::kF32) continue;
    MC_TRY_(check_attend(bed, type, {.tensor = true, .together = 3}));  // 15 of 16 queries
    for (const uint32_t dim : {64u, 96u, 128u})                         // 60 of 64
      MC_TRY_(check_attend(bed, type, {.tensor = true, .together = 12, .prompt = true}, dim));
    MC_TRY_(check_attend(bed, type, {.tensor = true}));
    MC_TRY_(check_attend(bed, type, {.tensor = true, .split = true}));
  }
  return {};
}

// A decode step's attention in one layer of an 8B model: all the KV is read once.
Result<> time_decode(const Bench& b) {
  MC_TRY(Bed bed, Bed::make(b));
  const bool tiny = b.device->info().kind == "stand-in";
  const Heads h{32, 8, 128, 16};
  const std::vector<uint32_t> lengths(tiny ? 1 : 32, tiny ? 300 : 8192);
  MC_TRY(const Paged p, Paged::make(bed, h, DType::kBf16, lengths));
  const auto rows = rows_of(lengths, false);
  const uint64_t bytes = lengths.size() * lengths[0] * p.layer / h.block_tokens;
  MC_TRY(const Buffer queries, bed.put(numbers(rows.size() * h.row(), 3), DType::kF32));
  MC_TRY(const Buffer list, bed.put(rows.data(), rows.size() * sizeof(mc_row)));
  MC_TRY(const Buffer out, b.device->allocate(rows.size() * h.heads * h.dim * 4));
  MC_TRY(const Buffer parts, b.device->allocate(rows.size() * h.heads * 32 * (h.dim + 2) * 4));
  const Values zeros(1 << 20);
  for (uint64_t done = 0; done < p.kv.size(); done += zeros.size() * 4)
    MC_TRY_(finish(*bed.stream, [&] {
      return bed.stream->copy(p.kv.data() + done, reinterpret_cast<const std::byte*>(zeros.data()),
                              std::min<uint64_t>(zeros.size() * 4, p.kv.size() - done));
    }));
  const auto ours = [&]() -> Result<bench::Measured> {
    return bench::gigabytes(b.clock, bytes, 1, [&] {
      return attend(bed, p, {.tensor = true, .split = true}, queries, out, parts, list,
                    rows.size());
    });
  };
  const auto copy = [&]() -> Result<bench::Measured> {  // reads half of them, and writes as many
    return bench::gigabytes(b.clock, bytes / 2 * 2, 1, [&] {
      return finish(*bed.stream, [&] {
        return bed.stream->copy(p.kv.data() + p.kv.size() / 2, p.kv.data(), bytes / 2);
      });
    });
  };
  return bench::compare(
      {.bench = "gpu-kernel",
       .name = strf("decode attention, %zu x %u, bf16", lengths.size(), lengths[0]),
       .against = "memory, read and written",
       .target = 0.7},
      b.turns(), ours, copy);
}

constexpr uint32_t kPlainMax = 2048;  // tokens that the plain kernel is timed with

Result<> time_prompt_of(const Bench& b, uint32_t tokens) {
  MC_TRY(Bed bed, Bed::make(b));
  const bool tiny = b.device->info().kind == "stand-in";
  const Heads h = tiny ? Heads{4, 2, 32, 16} : Heads{32, 8, 128, 16};
  const std::vector<uint32_t> lengths(1, tiny ? 64 : tokens);
  MC_TRY(const Paged p, Paged::make(bed, h, DType::kBf16, lengths));
  const auto rows = rows_of(lengths, true);
  MC_TRY(const Buffer queries, bed.put(numbers(rows.size() * h.row(), 3), DType::kF32));
  MC_TRY(const Buffer list, bed.put(rows.data(), rows.size() * sizeof(mc_row)));
  MC_TRY(const Buffer out, b.device->allocate(rows.size() * h.heads * h.dim * 4));
  MC_TRY_(store(bed, p, queries, rows, list, false));
  const uint64_t flops = 2ull * rows.size() * rows.size() * h.heads * h.dim;  // of the lower half
  const auto side = [&](Attended how) {
    return [&, how]() -> Result<bench::Measured> {
      return bench::gigabytes(b.clock, flops, 1, [&] {
        return attend(bed, p, how, queries, out, {}, list, rows.size());
      });
    };
  };
  const uint32_t per_kv = h.heads / h.kv_heads;
  const Attended by_16{.tensor = true, .together = MC_TENSOR_HEADS / per_kv};
  return bench::compare(
      {.bench = "gpu-kernel",
       .name = strf("prompt attention, %u tokens, bf16", lengths[0]),
       .unit = "GFLOP/s",
       .against = tokens > kPlainMax ? "groups of 16 queries" : "the plain kernel"},
      b.turns(), side({.tensor = true, .together = MC_PROMPT_QUERIES / per_kv, .prompt = true}),
      side(tokens > kPlainMax ? by_16 : Attended{}));
}
Result<> time_prompt(const Bench& b) {
  MC_TRY_(time_prompt_of(b, kPlainMax));
  return time_prompt_of(b, 4 * kPlainMax);
}

}  // namespace

std::vector<Case> attention_checks() {
  return {{"attention", "KV in blocks, both layouts of turns, plain and split attention",
           check_attention}};
}

std::vector<Case> attention_figures() {
  return {
      {"time-decode", "a decode step's attention against the memory", time_decode},
      {"time-prompt", "a prompt's attention against the plain kernel", time_prompt},
  };
}

}  // namespace mc::gpu_check
