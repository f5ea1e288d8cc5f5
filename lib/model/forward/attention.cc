// Attention of the forward pass: a head's queries go through the tiles of their sequence's KV, in
// one of the ways of model/kernels/attention.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "model/forward/transformer.h"
#include "model/kernels/scratch.h"

namespace mc::model {
namespace {

constexpr uint32_t kScored = 16;              // queries whose scores of a tile are kept at a time
constexpr uint32_t kQ8InGgml = 8;             // the number of the format Q8_0
constexpr uint32_t kSignOfEach = 0x80808080;  // of four integers: from -128..127 to 0..255
alignas(64) constexpr std::byte kNoRow[size_t{kHeadDimMax} * 2]{};

uint32_t up_to_32(uint32_t n) { return (n + 31) / 32 * 32; }

void scale_row(const float* __restrict from, float scale, uint32_t n, float* __restrict to) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes)  // compilers make vectors of loops whose length they know
    for (uint32_t j = i; j < i + kLanes; ++j) to[j] = from[j] * scale;
  for (; i < n; ++i) to[i] = from[i] * scale;
}

// Parts of one piece of memory.
class AttentionMemory {
 public:
  explicit AttentionMemory(size_t bytes) : memory_(std::max(bytes + kSlack, kKept)) {
    at_ = memory_.get() + (64 - reinterpret_cast<uintptr_t>(memory_.get()) % 64);
    end_ = memory_.get() + std::max(bytes + kSlack, kKept);
  }
  template <class T>
  T* take(size_t n) {
    auto* const part = reinterpret_cast<T*>(at_);
    at_ += (n * sizeof(T) + 63) / 64 * 64;
    MC_CHECK(at_ <= end_);
    return part;
  }

 private:
  static constexpr size_t kSlack = 16 * 64, kKept = 64 << 10;  // the thread keeps pieces from there
  ScratchMemory memory_;
  std::byte *at_ = nullptr, *end_ = nullptr;
};

// Where a tile's keys and values lie in blocks.
struct TileRows {
  const std::byte *keys[kTile], *values[kTile];
  uint32_t count = 0;
};

// Where the rows lie that a thread goes through, from a tile's first one on. A row is fetched
// kAhead rows before its turn: a head's rows are too few for the processor's own prefetching, and
// the next ones lie elsewhere.
struct RowStream {
  static constexpr uint32_t kAhead = 32, kEnough = kTile + kAhead;
  const std::byte *keys[kEnough + kTile], *values[kEnough + kTile];
  uint32_t count = 0;

  void drop(uint32_t n) {
    std::copy(keys + n, keys + count, keys);
    std::copy(values + n, values + count, values);
    count -= n;
  }
  // Behind the last there is nothing to fetch.
  void end() {
    for (uint32_t t = count; t < kEnough; ++t) keys[t] = values[t] = kNoRow;
  }
};

// The first position that a row at `position` sees. Window 0: none.
size_t first_seen(size_t position, size_t window) {
  return window != 0 && position >= window ? position + 1 - window : 0;
}

// Queries of the rows from `begin` on, `per_row` of each.
struct TileQueries {
  size_t begin;
  uint32_t per_row;
  size_t window, count;

  // What each sees of the tile of positions [tile, end). Returns the range of those that see some.
  std::pair<size_t, size_t> look(size_t tile, size_t end, SeenKeys* seen) const {
    size_t begins = count, ends = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t position = begin + i / per_row, first = first_seen(position, window);
      if (position < tile || first >= end) continue;
      seen[i] = {static_cast<uint32_t>(std::max(first, tile) - tile),
                 static_cast<uint32_t>(std::min<size_t>(kTile, position + 1 - tile))};
      begins = std::min(begins, i);
      ends = i + 1;
    }
    return {begins, ends};
  }
};

// What all ways have: the model's shape, and the head's queries.
struct TileWork {
  const Kernels& kernels;
  KvFormat kv;
  uint32_t dim = 0;
  bool apart = true;  // else keys are the values
  float cap = 0;
  size_t queries = 0;
};

// Rows as wide as the kernels take them.
class PaddedRows {
 public:
  PaddedRows() = default;
  PaddedRows(size_t bytes, size_t wide, AttentionMemory& memory) : bytes_(bytes), wide_(wide) {
    if (bytes == wide) return;
    rows_ = memory.take<std::byte>(kTile * wide);
    std::fill_n(rows_, kTile * wide, std::byte{0});
  }
  static size_t memory(size_t bytes, size_t wide) { return bytes == wide ? 0 : kTile * wide; }
  // `rows`: what the pointers become. Of those behind `count` up to a multiple of 16, zeros.
  void pad(const std::byte** rows, uint32_t count) const {
    for (uint32_t t = 0; rows_ != nullptr && t < count; ++t) {
      std::memcpy(rows_ + t * wide_, rows[t], bytes_);
      rows[t] = rows_ + t * wide_;
    }
    for (uint32_t t = count; t % kLanes != 0; ++t) rows[t] = kNoRow;
  }

 private:
  size_t bytes_ = 0, wide_ = 0;
  std::byte* rows_ = nullptr;
};

class FloatTiles {
 public:
  static uint32_t wide(uint32_t dim) { return padded(dim); }
  static size_t memory(const TileWork& w) {
    return (w.apart ? 2 : 1) * kTile * wide(w.dim) * sizeof(float);
  }
  FloatTiles(const TileWork& work, const float* queries, AttentionMemory& memory)
      : work_(work), wide_(wide(work.dim)), queries_(queries) {
    keys_ = memory.take<float>(size_t{kTile} * wide_);
    values_ = work.apart ? memory.take<float>(size_t{kTile} * wide_) : keys_;
  }
  void take(TileRows& rows, const RowStream&) {
    widen(rows.keys, rows.count, keys_);
    if (work_.apart) widen(rows.values, rows.count, values_);
  }
  // Of queries [begin, end); each sees something of the tile.
  void attend(size_t begin, size_t end, const SeenKeys* seen, Attention* states) const {
    for (size_t i = begin; i < end;) {
      size_t next = i + 1;
      while (next < end && seen[next] == seen[i]) ++next;
      FloatAttention job;
      job.queries = queries_ + i * wide_;
      job.count = static_cast<uint32_t>(next - i);
      job.keys = keys_ + size_t{seen[i].begin} * wide_;
      job.values = values_ + size_t{seen[i].begin} * wide_;
      job.positions = seen[i].end - seen[i].begin;
      job.dim = wide_;
      job.cap = work_.cap;
      job.states = states + i;
      work_.kernels.attend(job);
      i = next;
    }
  }

 private:
  void widen(const std::byte* const* rows, uint32_t count, float* out) const {
    const uint32_t dim = work_.dim;
    const size_t bytes = work_.kv.row_bytes(dim);
    for (uint32_t t = 0; t < count;) {
      uint32_t side_by_side = 1;
      if (dim == wide_)
        while (t + side_by_side < count && rows[t + side_by_side] == rows[t] + side_by_side * bytes)
          ++side_by_side;
      work_.kernels.widen(work_.kv.type(), rows[t], size_t{side_by_side} * dim, out);
      if (dim != wide_) std::fill(out + dim, out + wide_, 0.0f);
      out += size_t{side_by_side} * wide_;
      t += side_by_side;
    }
  }
  TileWork work_;
  uint32_t wide_;
  const float* queries_;
  float *keys_, *values_;
};

// The part of both ways that multiply values in pairs.
class PairTiles {
 public:
  static uint32_t wide(uint32_t dim) { return up_to_32(dim); }
  static size_t memory(const TileWork& w) {
    const size_t n = wide(w.dim);
    return w.queries * n * 2 + size_t{kTile} * n * 4 + 2 * PaddedRows::memory(w.dim * 2, n * 2) +
           kScored * kTile * sizeof(float);
  }
  PairTiles(const TileWork& work, const float* queries, AttentionMemory& memory)
      : work_(work), wide_(wide(work.dim)) {
    start(queries, memory);
  }
  void take(TileRows& rows, const RowStream& stream) {
    padded_keys_.pad(rows.keys, rows.count);
    if (work_.apart)
      padded_values_.pad(rows.values, rows.count);
    else
      std::copy_n(rows.keys, padded(rows.count), rows.values);
    scores_.positions = values_.positions = rows.count;
    if (work_.queries <= work_.kernels.few) {
      scores_.key_rows = {rows.keys, stream.keys + RowStream::kAhead};
      values_.value_rows = {rows.values, stream.values + RowStream::kAhead};
      return;
    }
    work_.kernels.turn_words(rows.keys, rows.count, wide_ / 2, 0, keys_, size_t{wide_} * kLanes * 2,
                             stream.keys + RowStream::kAhead);
    work_.kernels.pair_rows(false, rows.values, rows.count, wide_, mixed_,
                            stream.values + RowStream::kAhead);
  }
  void attend(size_t begin, size_t end, const SeenKeys* seen, Attention* states) const {
    for (size_t i = begin; i < end; i += kScored) {
      PairScores scores = scores_;
      scores.queries += i * wide_;
      scores.count = static_cast<uint32_t>(std::min<size_t>(kScored, end - i));
      work_.kernels.score_pairs(scores);
      PairValues values = values_;
      values.seen = seen + i;
      values.count = scores.count;
      values.states = states + i;
      work_.kernels.add_pair_values(values);
    }
  }

 private:
  void start(const float* queries, AttentionMemory& memory) {
    padded_keys_ = PaddedRows(size_t{work_.dim} * 2, size_t{wide_} * 2, memory);
    padded_values_ = PaddedRows(size_t{work_.dim} * 2, size_t{wide_} * 2, memory);
    auto* const rounded = memory.take<uint16_t>(work_.queries * wide_);
    work_.kernels.round(queries, work_.queries * wide_, rounded);
    scores_.queries = rounded;
    scores_.wide = values_.wide = wide_;
    keys_ = memory.take<std::byte>(size_t{kTile} * wide_ * 2);
    mixed_ = memory.take<std::byte>(size_t{kTile} * wide_ * 2);
    scores_.keys = keys_;
    values_.values = mixed_;
    scores_.scores = values_.scores = memory.take<float>(kScored * kTile);
    values_.cap = work_.cap;
  }
  TileWork work_;
  uint32_t wide_;
  PaddedRows padded_keys_, padded_values_;
  PairScores scores_;
  PairValues values_;
  std::byte *keys_, *mixed_;
};

class IntegerTiles {
 public:
  static uint32_t wide(uint32_t dim) { return up_to_32(dim); }
  static size_t memory(const TileWork& w) {
    const size_t n = wide(w.dim), groups = n / kGroup;
    return kTile / kLanes * layout().panel_bytes(static_cast<uint32_t>(groups)) + kTile * n * 2 +
           kTile * groups * (sizeof(float) + 2) + 2 * PaddedRows::memory(w.dim, n) +
           kScored * kTile * sizeof(float);
  }
  IntegerTiles(const TileWork& work, const float* queries, AttentionMemory& memory)
      : work_(work), rounded_(work.queries, wide(work.dim) / kGroup) {
    start(queries, memory);
  }
  void take(TileRows& rows, const RowStream& stream) {
    if (!work_.apart) std::copy_n(rows.keys, rows.count, rows.values);
    take_scales(rows);
    const uint32_t count = rows.count;
    padded_keys_.pad(rows.keys, count);
    padded_values_.pad(rows.values, count);
    work_.kernels.turn_words(rows.keys, count, wide_ / 4, kSignOfEach, keys_, scores_.panel_bytes,
                             stream.keys + RowStream::kAhead);
    work_.kernels.pair_rows(true, rows.values, count, wide_, mixed_,
                            stream.values + RowStream::kAhead);
    scores_.columns = padded(count);
    values_.positions = count;
  }
  void attend(size_t begin, size_t end, const SeenKeys* seen, Attention* states) const {
    // From a multiple of kScored: queries were rounded in chunks.
    for (size_t first = begin / kScored * kScored; first < end; first += kScored) {
      BlockJob scores = scores_;
      scores.x = rounded_.rows().from(first, groups_);
      scores.rows = std::min<size_t>(kScored, work_.queries - first);
      work_.kernels.blocks->multiply(scores);
      const size_t from = std::max(begin, first), to = std::min(end, first + scores.rows);
      PairValues values = values_;
      values.scores += (from - first) * kTile;
      values.seen = seen + from;
      values.count = static_cast<uint32_t>(to - from);
      values.states = states + from;
      work_.kernels.add_pair_values(values);
    }
  }

 private:
  void start(const float* queries, AttentionMemory& memory) {
    wide_ = wide(work_.dim);
    groups_ = wide_ / kGroup;
    padded_keys_ = PaddedRows(work_.dim, wide_, memory);
    padded_values_ = PaddedRows(work_.dim, wide_, memory);
    for (size_t i = 0; i < work_.queries;) {
      const uint32_t together = work_.kernels.blocks->rows_together(work_.queries - i);
      work_.kernels.blocks->round(queries + i * wide_, wide_, together, groups_,
                                  rounded_.rows().from(i, groups_));
      i += together;
    }
    scores_.layout = layout();
    scores_.groups = groups_;
    scores_.panel_bytes = scores_.layout.panel_bytes(groups_);
    keys_ = memory.take<std::byte>(kTile / kLanes * scores_.panel_bytes);
    scores_.panels = keys_;
    scores_.y = memory.take<float>(kScored * kTile);
    scores_.y_stride = kTile;
    mixed_ = memory.take<std::byte>(size_t{kTile} * wide_ * 2);
    halves_ = memory.take<uint16_t>(size_t{kTile} * groups_);
    scales_ = memory.take<float>(size_t{kTile} * groups_);
    values_.scores = scores_.y;
    values_.values = mixed_;
    values_.scales = scales_;
    values_.wide = wide_;
    values_.cap = work_.cap;
  }
  static BlockLayout layout() { return {block_format_numbered(kQ8InGgml)}; }
  // Takes the scales from the rows, which begin with their integers then.
  void take_scales(TileRows& rows) const {
    const uint32_t end = padded(rows.count);
    std::byte* const key_scales = keys_ + groups_ * scores_.layout.integer_bytes();
    for (uint32_t t = 0; t < end; ++t) {
      const std::byte* const key = t < rows.count ? rows.keys[t] : kNoRow;
      const std::byte* const value = t < rows.count ? rows.values[t] : kNoRow;
      for (uint32_t g = 0; g < groups_; ++g) {
        std::memcpy(key_scales + t / kLanes * scores_.panel_bytes + (g * kLanes + t % kLanes) * 2,
                    key + size_t{2} * g, 2);
        std::memcpy(halves_ + g * kTile + t, value + size_t{2} * g, 2);
      }
      if (t >= rows.count) continue;
      rows.keys[t] += size_t{2} * groups_;
      rows.values[t] += size_t{2} * groups_;
    }
    for (uint32_t g = 0; g < groups_; ++g)
      work_.kernels.widen(DType::kF16, reinterpret_cast<const std::byte*>(halves_ + g * kTile), end,
                          scales_ + g * kTile);
  }
  TileWork work_;
  uint32_t wide_ = 0, groups_ = 0;
  PaddedRows padded_keys_, padded_values_;
  RoundedMemory rounded_;
  BlockJob scores_;
  PairValues values_;
  std::byte *keys_, *mixed_;
  uint16_t* halves_;
  float* scales_;
};

}  // namespace

// Where positions [begin, end) of a plane (a head of keys or of values) lie.
void Transformer::rows_at(size_t plane_at, const Slice& slice, size_t begin, size_t end,
                          const std::byte** rows) const {
  const size_t bytes = kv_.type.row_bytes(config_.head_dim);
  while (begin < end) {
    const size_t in_block = begin % kv_.block_tokens;
    const std::byte* at = slice.blocks[begin / kv_.block_tokens] + plane_at + in_block * bytes;
    const size_t last = std::min(end, begin + kv_.block_tokens - in_block);
    for (; begin < last; ++begin, at += bytes) *rows++ = at;
  }
}

template <class Tiles>
void Transformer::attend_by(uint32_t layer, const Group& g, const Group* next, const float* qkv,
                            float* out) const {
  const uint32_t dim = config_.head_dim, wide = Tiles::wide(dim);
  const uint32_t per_kv = config_.heads / config_.kv_heads;
  const size_t queries = (g.end - g.begin) * per_kv;
  const auto window = static_cast<size_t>(config_.kind(layer).window);
  const float scale =
      1.0f / std::sqrt(static_cast<float>(config_.query_scalar > 0 ? config_.query_scalar : dim));
  const TileWork work{
      kernels_, kv_.type, dim, config_.planes() == 2, static_cast<float>(config_.attention_cap),
      queries};
  AttentionMemory memory(queries *
                             (2 * wide * sizeof(float) + sizeof(Attention) + sizeof(SeenKeys)) +
                         Tiles::memory(work));
  auto* const query = memory.take<float>(queries * wide);
  auto* const sums = memory.take<float>(queries * wide);
  auto* const states = memory.take<Attention>(queries);
  auto* const seen = memory.take<SeenKeys>(queries);
  std::fill_n(sums, queries * wide, 0.0f);
  for (size_t i = 0; i < queries; ++i) {
    const float* from =
        qkv + (g.row + i / per_kv) * row_floats() + (g.kv_head * per_kv + i % per_kv) * size_t{dim};
    scale_row(from, scale, dim, query + i * wide);
    std::fill(query + i * wide + dim, query + (i + 1) * wide, 0.0f);
    states[i] = Attention{};
    states[i].values = sums + i * wide;
  }
  const auto first_tile = [&](const Group& of) {
    return first_seen(of.begin, window) / kTile * kTile;
  };
  RowStream stream;
  const Group* following = &g;  // whose rows come into the stream next, from `from` on
  size_t from = first_tile(g);
  const auto fill = [&] {
    for (size_t end; following != nullptr && stream.count < RowStream::kEnough; from = end) {
      end = std::min<size_t>(following->end, from + kTile);
      const Slice& slice = *following->slice;
      rows_at(plane_at(layer, false, following->kv_head), slice, from, end,
              stream.keys + stream.count);
      rows_at(plane_at(layer, work.apart, following->kv_head), slice, from, end,
              stream.values + stream.count);
      stream.count += static_cast<uint32_t>(end - from);
      if (end < following->end) continue;
      following = following == &g ? next : nullptr;
      if (following != nullptr) end = first_tile(*following);
    }
    stream.end();
  };
  Tiles tiles(work, query, memory);
  const TileQueries all{g.begin, per_kv, window, queries};
  TileRows rows;
  for (size_t tile = first_tile(g); tile < g.end; tile += kTile) {
    const size_t end = std::min<size_t>(g.end, tile + kTile);
    fill();
    rows.count = static_cast<uint32_t>(end - tile);
    std::copy_n(stream.keys, rows.count, rows.keys);
    std::copy_n(stream.values, rows.count, rows.values);
    tiles.take(rows, stream);
    const auto [begins, ends] = all.look(tile, end, seen);
    tiles.attend(begins, ends, seen, states);
    stream.drop(rows.count);
  }
  for (size_t i = 0; i < queries; ++i) {
    float* to = out + (g.row + i / per_kv) * config_.q_rows() +
                (g.kv_head * per_kv + i % per_kv) * size_t{dim};
    scale_row(states[i].values, 1.0f / states[i].total, dim, to);
  }
}

void Transformer::attend(uint32_t layer, const Group& g, const Group* next, const float* qkv,
                         float* out) const {
  if (kv_.type.quantized()) return attend_by<IntegerTiles>(layer, g, next, qkv, out);
  // Where products with weights are rounded anyway, those with KV of bf16 are too.
  const bool rounds = factors_ == DType::kBf16 || weights_.layers[layer].qkv.quantized();
  if (rounds && kv_.type.type() == DType::kBf16)
    return attend_by<PairTiles>(layer, g, next, qkv, out);
  attend_by<FloatTiles>(layer, g, next, qkv, out);
}

}  // namespace mc::model
