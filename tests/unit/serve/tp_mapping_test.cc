// Maps KV between tensor-parallel layouts: every byte of every head in its place, once.
#include "serve/connector/tp_mapping.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/random.h"

namespace mc::serve {
namespace head_split_test {
namespace {

struct Shape {
  uint32_t layers, kv_heads, tokens, head_dim;
};

// A rank's pool. `at` has the places of its blocks, in runs and gaps.
struct RankPool {
  uint32_t heads = 0;
  uint64_t block = 0;
  std::vector<std::byte> memory;
  std::vector<uint64_t> offsets;  // of the sequence's blocks
};

// n blocks in runs of three and more now and then, in any order.
std::vector<uint64_t> places(Random& random, size_t n, size_t slots) {
  std::vector<uint64_t> out;
  std::set<uint64_t> taken;
  while (out.size() < n) {
    uint64_t at = random.below(slots);
    for (size_t run = 1 + random.below(6); run > 0 && out.size() < n && at < slots; --run, ++at)
      if (taken.insert(at).second) out.push_back(at);
  }
  return out;
}

RankPool rank_pool(Random& random, const Shape& s, uint32_t ranks, size_t blocks) {
  RankPool pool;
  pool.heads = *heads_of_rank(s.kv_heads, ranks);
  pool.block = 2ULL * s.layers * pool.heads * s.tokens * s.head_dim;
  pool.memory.resize(pool.block * (blocks + 8));
  for (const uint64_t at : places(random, blocks, blocks + 8))
    pool.offsets.push_back(at * pool.block);
  return pool;
}

// The value of the byte at (block, layer, K|V, head, token, dim).
std::byte byte_of(size_t block, uint32_t layer, uint32_t kv, uint32_t head, uint32_t inner) {
  return static_cast<std::byte>(1 + (block * 131 + layer * 31 + kv * 17 + head * 7 + inner) % 255);
}

// Calls visit(byte, its value) for every byte of the layers of a rank's blocks.
template <class Visit>
void each_byte(RankPool& pool, const Shape& s, uint32_t first_head, uint32_t first_layer,
               uint32_t last_layer, const Visit& visit) {
  const uint32_t head_bytes = s.tokens * s.head_dim;
  for (size_t b = 0; b < pool.offsets.size(); ++b)
    for (uint32_t layer = first_layer; layer < last_layer; ++layer)
      for (uint32_t kv = 0; kv < 2; ++kv)
        for (uint32_t h = 0; h < pool.heads; ++h)
          for (uint32_t i = 0; i < head_bytes; ++i)
            visit(pool.memory[pool.offsets[b] +
                              ((2ULL * layer + kv) * pool.heads + h) * head_bytes + i],
                  byte_of(b, layer, kv, first_head + h, i));
}

uint32_t first_head_of(uint32_t kv_heads, uint32_t ranks, uint32_t rank) {
  return kv_heads >= ranks ? rank * (kv_heads / ranks) : rank / (ranks / kv_heads);
}

// Executes requests as the transfer engine would, counting how often a byte of `to` is written.
void execute(const std::vector<xfer::Request>& requests, RankPool& to, std::vector<int>& written) {
  for (const xfer::Request& r : requests)
    for (uint64_t row = 0; row < r.rows; ++row) {
      const uint64_t at = r.offset + row * r.remote_stride;
      REQUIRE(at + r.bytes <= to.memory.size());
      std::memcpy(to.memory.data() + at, r.local + row * r.local_stride, r.bytes);
      for (uint64_t i = 0; i < r.bytes; ++i) ++written[at + i];
    }
}

void check_split(const Shape& s, uint32_t from_ranks, uint32_t to_ranks, size_t blocks,
                 uint64_t seed) {
  Random random(seed);
  std::vector<RankPool> from, to;
  for (uint32_t r = 0; r < from_ranks; ++r) {
    from.push_back(rank_pool(random, s, from_ranks, blocks));
    each_byte(from[r], s, first_head_of(s.kv_heads, from_ranks, r), 0, s.layers,
              [](std::byte& at, std::byte value) { at = value; });
  }
  std::vector<std::vector<int>> written;
  for (uint32_t r = 0; r < to_ranks; ++r) {
    to.push_back(rank_pool(random, s, to_ranks, blocks));
    written.emplace_back(to[r].memory.size());
  }
  const bool all_layers = random.chance(0.5);
  const auto first = all_layers ? 0U : static_cast<uint32_t>(random.below(s.layers));
  const auto last =
      all_layers ? s.layers : first + 1 + static_cast<uint32_t>(random.below(s.layers - first));
  const auto spans = split_heads(s.kv_heads, from_ranks, to_ranks);
  REQUIRE(spans);
  for (const HeadSpan& span : *spans) {
    RankPool &a = from[span.from], &b = to[span.to];
    std::vector<std::byte*> local;
    for (const uint64_t offset : a.offsets) local.push_back(a.memory.data() + offset);
    const SplitShape shape{
        s.layers,  uint64_t{s.tokens} * s.head_dim, a.heads, b.heads, span.from_head, span.to_head,
        span.heads};
    execute(plan_split(xfer::Op::kWrite, local, {1, b.offsets, {}}, {0, blocks, 0, 0, {}}, shape,
                       first, last),
            b, written[span.to]);
  }
  for (uint32_t r = 0; r < to_ranks; ++r) {
    size_t wrong = 0, bytes = 0;
    each_byte(to[r], s, first_head_of(s.kv_heads, to_ranks, r), first, last,
              [&](std::byte& at, std::byte value) {
                ++bytes;
                wrong +=
                    at != value || written[r][static_cast<size_t>(&at - to[r].memory.data())] != 1;
              });
    CHECK(wrong == 0);
    const auto all = std::count(written[r].begin(), written[r].end(), 1);
    CHECK(static_cast<size_t>(all) == bytes);  // and not a byte besides
  }
}

TEST_CASE("every head arrives in its place once, for all shapes and ranks") {
  const std::pair<uint32_t, uint32_t> kRanks[] = {{4, 2}, {4, 1}, {8, 2}, {2, 1}, {8, 4},
                                                  {1, 1}, {2, 2}, {8, 8}, {2, 4}, {1, 8}};
  uint64_t seed = 1;
  for (const auto& ranks : kRanks)
    for (const uint32_t layers : {1U, 2U, 5U})
      for (const uint32_t heads : {1U, 2U, 8U, 16U})
        for (const uint32_t tokens : {1U, 16U}) {
          const uint32_t from = ranks.first, to = ranks.second;
          CAPTURE(from);
          CAPTURE(to);
          CAPTURE(layers);
          CAPTURE(heads);
          CAPTURE(tokens);
          for (int round = 0; round < 4; ++round) {
            CAPTURE(seed);
            const Shape shape{layers, heads, tokens, 4};
            check_split(shape, from, to, 1 + seed % 12, seed);
            ++seed;
          }
        }
}

std::vector<xfer::Request> plan_runs(const std::vector<size_t>& here,
                                     const std::vector<uint64_t>& there, uint32_t first,
                                     uint32_t last, uint32_t peer_heads) {
  static std::vector<std::byte> memory(1 << 16);
  const SplitShape shape{4, 64, 2, peer_heads, 0, 0, 2};
  std::vector<std::byte*> local;
  KvPeer peer;
  for (const size_t i : here) local.push_back(memory.data() + i * 8 * 2 * 64);
  for (const uint64_t i : there) peer.offsets.push_back(i * 8 * peer_heads * 64);
  return plan_split(xfer::Op::kRead, local, peer, {0, here.size(), 0, 0, {}}, shape, first, last);
}

TEST_CASE("whole blocks side by side are one strided request, layers of them one each") {
  const auto runs = plan_runs({3, 4, 5, 9}, {10, 11, 12, 13}, 0, 4, 4);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].rows == 3 * 8);
  CHECK(runs[0].bytes == 128);
  CHECK(runs[0].local_stride == 128);
  CHECK(runs[0].remote_stride == 256);
  CHECK(runs[1].rows == 8);
  const auto layers = plan_runs({3, 4, 5}, {10, 11, 12}, 1, 2, 4);
  REQUIRE(layers.size() == 3);
  CHECK(layers[0].rows == 2);
  const auto same = plan_runs({3, 4, 5}, {10, 11, 12}, 0, 4, 2);
  REQUIRE(same.size() == 1);
  CHECK(same[0].rows == 1);
  CHECK(same[0].bytes == 3 * 8 * 128);
}

TEST_CASE("one rank of copies sends, and ranks that cannot share evenly are refused") {
  const auto mla = split_heads(1, 4, 2);
  REQUIRE(mla);
  REQUIRE(mla->size() == 2);  // rank 0 to both
  CHECK((*mla)[0].from == 0);
  CHECK((*mla)[1].from == 0);
  CHECK((*mla)[1].to == 1);
  CHECK(split_heads(8, 3, 1).error().code == Code::kInvalid);
  CHECK(split_heads(6, 4, 2).error().code == Code::kInvalid);
  CHECK(split_heads(0, 1, 1).error().code == Code::kInvalid);
  CHECK(split_heads(4, 1, 0).error().code == Code::kInvalid);
  CHECK(*heads_of_rank(8, 2) == 4);
  CHECK(*heads_of_rank(2, 8) == 1);
}

}  // namespace
}  // namespace head_split_test
}  // namespace mc::serve
