// Blocks of a KV cache, through the C interface.
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

constexpr size_t kHash = 32;

// Two layers of one allocation whose blocks lie between each other, and one of its own with two
// rows a block.
struct Kv {
  static constexpr uint64_t kBlocks = 4, kBytes = 512;
  std::vector<char> together = std::vector<char>(kBlocks * 2 * kBytes);
  std::vector<char> apart = std::vector<char>(2 * kBlocks * kBytes);
  std::vector<mc_kv_region> regions() {
    const uint32_t size = sizeof(mc_kv_region);
    return {{size, 0, together.data(), 2 * kBytes, kBytes, 0},
            {size, 1, together.data() + kBytes, 2 * kBytes, kBytes, 0},
            {size, 2, apart.data(), kBytes, kBytes, kBlocks * kBytes}};
  }
  void fill(uint64_t block, char with) {
    std::memset(together.data() + block * 2 * kBytes, with, 2 * kBytes);
    std::memset(apart.data() + block * kBytes, with, kBytes);
    std::memset(apart.data() + (kBlocks + block) * kBytes, with + 1, kBytes);
  }
  std::string block(uint64_t n) const {
    return std::string(together.data() + n * 2 * kBytes, 2 * kBytes) +
           std::string(apart.data() + n * kBytes, kBytes) +
           std::string(apart.data() + (kBlocks + n) * kBytes, kBytes);
  }
  mc_kv_layout* layout(mc_store* store) {
    const auto all = regions();
    mc_kv_layout* out = nullptr;
    REQUIRE(mc_kv_layout_new(store, all.data(), all.size(), kBlocks, &out) == MC_OK);
    return out;
  }
};

std::vector<uint8_t> hashes_of(std::initializer_list<uint8_t> first) {
  std::vector<uint8_t> out;
  for (const uint8_t f : first) {
    out.push_back(f);
    out.insert(out.end(), kHash - 1, 0xa0);
  }
  return out;
}

mc_kv_blocks blocks_of(const std::string& prefix, const std::vector<uint8_t>& hashes,
                       const std::vector<uint32_t>& numbers) {
  mc_kv_blocks out{};
  out.size = sizeof out;
  out.hash_bytes = kHash;
  out.prefix = prefix.data();
  out.prefix_bytes = prefix.size();
  out.hashes = hashes.data();
  out.blocks = numbers.data();
  out.count = numbers.size();
  return out;
}

TEST_CASE("blocks are put and got by hash, whatever their strides") {
  Pool pool;
  mc_store* const store = pool.store();
  Kv from, to;
  mc_kv_layout* const source = from.layout(store);
  mc_kv_layout* const target = to.layout(store);
  for (uint64_t b = 0; b < Kv::kBlocks; ++b) from.fill(b, static_cast<char>('a' + 2 * b));

  const std::string prefix = "m@tp0@";
  const auto hashes = hashes_of({1, 2, 3});
  const std::vector<uint32_t> numbers{3, 0, 2}, others{1, 2, 3};
  const mc_kv_blocks put = blocks_of(prefix, hashes, numbers);
  mc_put_result stored[3];
  REQUIRE(mc_store_put_blocks(store, source, &put, nullptr, 0, nullptr, stored) == MC_OK);
  for (const auto& r : stored) {
    CHECK(r.code == MC_OK);
    CHECK(r.outcome == MC_PUT_STORED);
    CHECK(r.bytes == 4 * Kv::kBytes);
  }
  // The key is the prefix and the hash; the value is the regions in order.
  const std::string key = prefix + "01" + [] {
    std::string rest;
    for (size_t i = 1; i < kHash; ++i) rest += "a0";
    return rest;
  }();
  std::string value(4 * Kv::kBytes, '-');
  REQUIRE(mc_store_get(store, key.data(), key.size(), value.data(), value.size(), nullptr) ==
          MC_OK);
  CHECK(value == from.block(3));

  const mc_kv_blocks get = blocks_of(prefix, hashes, others);
  mc_get_result got[3];
  REQUIRE(mc_store_get_blocks(store, target, &get, nullptr, 0, 0, got) == MC_OK);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(got[i].code == MC_OK);
    CHECK(got[i].flags == MC_GET_VERIFIED);  // the first read of each
    CHECK(got[i].bytes == 4 * Kv::kBytes);
    CHECK(to.block(others[i]) == from.block(numbers[i]));
  }
  CHECK(to.block(0) == std::string(4 * Kv::kBytes, '\0'));

  // On a queue.
  {
    const OwnQueue queue = open_queue(store);
    to.fill(1, 'X');
    REQUIRE(mc_store_get_blocks(store, target, &get, queue.get(), 11, 0, got) == MC_OK);
    const mc_done done = next(queue);
    CHECK(done.tag == 11);
    CHECK(done.failed == 0);
    CHECK(done.bytes == 3 * 4 * Kv::kBytes);
    CHECK(to.block(1) == from.block(3));
    REQUIRE(mc_store_put_blocks(store, source, &put, queue.get(), 12, nullptr, nullptr) == MC_OK);
    CHECK(next(queue).code == MC_OK);
  }
  mc_kv_layout_free(target);
  mc_kv_layout_free(source);
}

TEST_CASE("blocks fail on their own: outside the layout, absent, of another size") {
  Pool pool;
  mc_store* const store = pool.store();
  Kv kv;
  mc_kv_layout* const layout = kv.layout(store);
  kv.fill(0, 'a');
  const std::string prefix = "p";
  const auto hashes = hashes_of({1, 2, 3, 4});
  const std::vector<uint32_t> numbers{0, Kv::kBlocks, 1, 2};
  const mc_kv_blocks blocks = blocks_of(prefix, hashes, numbers);
  mc_put_result stored[4];
  REQUIRE(mc_store_put_blocks(store, layout, &blocks, nullptr, 0, nullptr, stored) == MC_OK);
  CHECK(stored[0].code == MC_OK);
  CHECK(stored[1].code == MC_INVALID);
  CHECK(error_text().find("block 4") != std::string::npos);
  CHECK(stored[2].code == MC_OK);

  const auto put_as = [&](uint8_t hash, size_t bytes) {
    std::string key = prefix + "0" + std::to_string(hash);
    for (size_t i = 1; i < kHash; ++i) key += "a0";
    const std::string value(bytes, 'v');
    REQUIRE(mc_store_remove(store, key.data(), key.size(), 1) != MC_BUSY);
    REQUIRE(mc_store_put(store, key.data(), key.size(), value.data(), value.size()) == MC_OK);
  };
  put_as(3, 4 * Kv::kBytes - 1);
  put_as(4, 4 * Kv::kBytes + 1);
  mc_get_result got[4];
  const std::vector<uint32_t> into{3, 0, 1, 2};
  const mc_kv_blocks reads = blocks_of(prefix, hashes, into);
  const OwnQueue queue = open_queue(store);
  REQUIRE(mc_store_get_blocks(store, layout, &reads, queue.get(), 1, 0, got) == MC_OK);
  CHECK(next(queue).failed == 3);
  CHECK(got[0].code == MC_OK);
  CHECK(kv.block(3) == kv.block(0));
  CHECK(got[1].code == MC_NOT_FOUND);
  CHECK(got[2].code == MC_CORRUPT);
  CHECK(got[3].code == MC_NO_SPACE);
  mc_kv_layout_free(layout);
}

TEST_CASE("a value may be of some regions only") {
  Pool pool;
  mc_store* const store = pool.store();
  Kv kv;
  mc_kv_layout* const layout = kv.layout(store);
  kv.fill(0, 'a');
  const std::string prefix = "layer2@";
  const auto hashes = hashes_of({1});
  const std::vector<uint32_t> number{0}, other{1};
  mc_kv_blocks blocks = blocks_of(prefix, hashes, number);
  blocks.first_region = 2;
  blocks.region_count = 1;
  mc_put_result stored{};
  REQUIRE(mc_store_put_blocks(store, layout, &blocks, nullptr, 0, nullptr, &stored) == MC_OK);
  CHECK(stored.bytes == 2 * Kv::kBytes);
  blocks.blocks = other.data();
  mc_get_result got{};
  REQUIRE(mc_store_get_blocks(store, layout, &blocks, nullptr, 0, 0, &got) == MC_OK);
  CHECK(got.code == MC_OK);
  CHECK(kv.block(1) == std::string(2 * Kv::kBytes, '\0') + kv.block(0).substr(2 * Kv::kBytes));
  blocks.region_count = 2;
  CHECK(mc_store_get_blocks(store, layout, &blocks, nullptr, 0, 0, &got) == MC_INVALID);
  blocks.region_count = 0;
  CHECK(mc_store_get_blocks(store, layout, &blocks, nullptr, 0, 0, &got) == MC_INVALID);
  mc_kv_layout_free(layout);
}

TEST_CASE("a block matches when it is stored under every prefix") {
  Pool pool;
  mc_store* const store = pool.store();
  Kv kv;
  mc_kv_layout* const layout = kv.layout(store);
  const std::string ranks[] = {"tp0@", "tp1@"};
  const auto hashes = hashes_of({1, 2, 3, 4});
  const std::vector<uint32_t> numbers{0, 1, 2, 3};
  mc_kv_blocks blocks = blocks_of(ranks[0], hashes, numbers);
  REQUIRE(mc_store_put_blocks(store, layout, &blocks, nullptr, 0, nullptr, nullptr) == MC_OK);
  blocks.prefix = ranks[1].data();
  blocks.count = 3;
  REQUIRE(mc_store_put_blocks(store, layout, &blocks, nullptr, 0, nullptr, nullptr) == MC_OK);
  const mc_key prefixes[] = {key_of(ranks[0]), key_of(ranks[1])};
  const auto matched = [&](size_t n) {
    size_t out = 99;
    REQUIRE(mc_store_match_blocks(store, prefixes, n, hashes.data(), kHash, 4, &out) == MC_OK);
    return out;
  };
  CHECK(matched(1) == 4);
  CHECK(matched(2) == 3);
  size_t none = 99;
  CHECK(mc_store_match_blocks(store, prefixes, 1, nullptr, kHash, 0, &none) == MC_OK);
  CHECK(none == 0);
  CHECK(mc_store_match_blocks(store, prefixes, 0, hashes.data(), kHash, 4, &none) == MC_INVALID);
  CHECK(mc_store_match_blocks(store, prefixes, 1, hashes.data(), 0, 4, &none) == MC_INVALID);
  CHECK(mc_store_match_blocks(store, prefixes, 1, nullptr, kHash, 4, &none) == MC_INVALID);
  CHECK(mc_store_match_blocks_within(store, prefixes, 2, hashes.data(), kHash, 4, 30'000, &none) ==
        MC_OK);
  CHECK(none == 3);
  constexpr size_t kMany = 9000;  // of two prefixes: more keys than one message holds
  const std::vector<uint8_t> many(kMany * kHash, 0xa0);
  CHECK(mc_store_match_blocks(store, prefixes, 2, many.data(), kHash, kMany, &none) == MC_OK);
  CHECK(none == 0);
  const auto first = hashes_of({1});
  std::vector<uint8_t> repeated;
  for (size_t i = 0; i < kMany; ++i) repeated.insert(repeated.end(), first.begin(), first.end());
  CHECK(mc_store_match_blocks(store, prefixes, 2, repeated.data(), kHash, kMany, &none) == MC_OK);
  CHECK(none == kMany);
  mc_kv_layout_free(layout);
}

TEST_CASE("a layout that cannot be is invalid") {
  Pool pool;
  Kv kv;
  const auto code_of = [&](std::vector<mc_kv_region> regions, uint64_t blocks = Kv::kBlocks) {
    mc_kv_layout* layout = nullptr;
    const mc_code code =
        mc_kv_layout_new(pool.store(), regions.data(), regions.size(), blocks, &layout);
    mc_kv_layout_free(layout);
    return code;
  };
  const auto all = kv.regions();
  CHECK(code_of(all) == MC_OK);
  CHECK(code_of({}) == MC_INVALID);
  CHECK(code_of(all, 0) == MC_INVALID);
  CHECK(code_of(all, UINT64_MAX / 2) == MC_INVALID);
  const auto changed = [&](auto change) {
    auto regions = all;
    change(regions[2]);
    return code_of(regions);
  };
  CHECK(changed([](auto& r) { r.base = nullptr; }) == MC_INVALID);
  CHECK(changed([](auto& r) { r.bytes = 0; }) == MC_INVALID);
  CHECK(changed([](auto& r) { r.block_stride = r.bytes - 1; }) == MC_INVALID);
  CHECK(changed([](auto& r) { r.row_stride = r.bytes - 1; }) == MC_INVALID);
  CHECK(changed([](auto& r) { r.row_stride = UINT64_MAX; }) == MC_INVALID);
  CHECK(changed([](auto& r) { r.size = 8; }) == MC_INVALID);

  mc_kv_layout* const layout = kv.layout(pool.store());
  const std::string prefix = "p";
  const auto hashes = hashes_of({1});
  const std::vector<uint32_t> number{0};
  const auto put = [&](auto change) {
    mc_kv_blocks blocks = blocks_of(prefix, hashes, number);
    change(blocks);
    return mc_store_put_blocks(pool.store(), layout, &blocks, nullptr, 0, nullptr, nullptr);
  };
  CHECK(put([](auto& b) { b.size = 0; }) == MC_INVALID);
  CHECK(put([](auto& b) { b.hash_bytes = 0; }) == MC_INVALID);
  CHECK(put([](auto& b) { b.hash_bytes = 65; }) == MC_INVALID);
  CHECK(put([](auto& b) { b.prefix = nullptr; }) == MC_INVALID);
  CHECK(put([](auto& b) { b.hashes = nullptr; }) == MC_INVALID);
  CHECK(put([](auto& b) { b.blocks = nullptr; }) == MC_INVALID);
  CHECK(put([](auto&) {}) == MC_OK);
  mc_kv_layout_free(layout);
}

}  // namespace
}  // namespace mc::capi
