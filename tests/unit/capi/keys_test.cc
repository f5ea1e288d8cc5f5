// Keys in flat form, and batches of more keys than one message holds, through the C interface.
#include <algorithm>

#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

struct Flat {
  void add(const std::string& key) {
    bytes += key;
    ends.push_back(static_cast<uint32_t>(bytes.size()));
  }
  mc_keys keys() const { return {bytes.data(), ends.data(), ends.size()}; }
  std::string bytes;
  std::vector<uint32_t> ends;
};

TEST_CASE("flat keys say what arrays of keys say") {
  Pool pool;
  mc_store* const store = pool.store();
  Flat three;
  for (const char* key : {"a", "bb", "ccc"}) three.add(key);
  const mc_keys keys = three.keys();
  std::string x = "xx", y = "yyy";
  // The values: xx, xxyyy, nothing.
  const mc_buffer buffers[] = {{x.data(), 2}, {x.data(), 2}, {y.data(), 3}};
  const uint32_t ends[] = {1, 3, 3};
  mc_put_result stored[3];
  REQUIRE(mc_store_put_keys(store, &keys, buffers, ends, nullptr, 0, nullptr, stored) == MC_OK);
  CHECK(stored[0].bytes == 2);
  CHECK(stored[1].bytes == 5);
  uint8_t found[3] = {9, 9, 9};
  REQUIRE(mc_store_exists_keys(store, &keys, nullptr, 0, found) == MC_OK);
  CHECK(found[0] == 1);
  CHECK(found[1] == 1);
  size_t matched = 0;
  REQUIRE(mc_store_match_keys(store, &keys, &matched) == MC_OK);
  CHECK(matched >= 2);

  std::string a(8, '-'), b(8, '-'), c(8, '-');
  const mc_buffer into[] = {{a.data(), 8}, {b.data(), 8}, {c.data(), 8}};
  mc_get_result got[3];
  REQUIRE(mc_store_get_keys(store, &keys, into, nullptr, nullptr, 0, 0, got) == MC_OK);
  CHECK(a == "xx------");
  CHECK(b == "xxyyy---");
  CHECK(got[1].bytes == 5);
  {
    const OwnQueue queue = open_queue(store);
    REQUIRE(mc_store_get_keys(store, &keys, into, nullptr, queue.get(), 4, 0, got) == MC_OK);
    CHECK(next(queue).tag == 4);
    REQUIRE(mc_store_exists_keys(store, &keys, queue.get(), 5, found) == MC_OK);
    CHECK(next(queue).tag == 5);
  }
  mc_code codes[3];
  uint64_t asked = 99;
  REQUIRE(mc_store_prefetch_keys(store, &keys, &asked) == MC_OK);
  CHECK(asked == 0);  // there is no disk
  REQUIRE(mc_store_remove_keys(store, &keys, 1, codes) == MC_OK);
  CHECK(codes[0] == MC_OK);
  REQUIRE(mc_store_remove_keys(store, &keys, 1, codes) == MC_OK);
  CHECK(codes[0] == MC_NOT_FOUND);
}

TEST_CASE("flat keys whose ends go back, or that are not there, are invalid") {
  Pool pool;
  Flat two;
  two.add("a");
  two.add("b");
  two.ends[1] = 0;
  mc_keys keys = two.keys();
  uint8_t found[2];
  CHECK(mc_store_exists_keys(pool.store(), &keys, nullptr, 0, found) == MC_INVALID);
  keys.ends = nullptr;
  CHECK(mc_store_exists_keys(pool.store(), &keys, nullptr, 0, found) == MC_INVALID);
  two.ends[1] = 2;
  keys = two.keys();
  const mc_buffer buffers[2] = {{nullptr, 1}, {nullptr, 0}};
  const uint32_t back[] = {1, 0};
  CHECK(mc_store_put_keys(pool.store(), &keys, buffers, nullptr, nullptr, 0, nullptr, nullptr) ==
        MC_INVALID);
  CHECK(mc_store_put_keys(pool.store(), &keys, buffers + 1, back, nullptr, 0, nullptr, nullptr) ==
        MC_INVALID);
}

// F57: a batch of more than 16,384 keys was refused.
TEST_CASE("F57: batches of more keys than one message holds are cut") {
  constexpr size_t kMany = 40'000;
  Pool pool;
  mc_store* const store = pool.store();
  Flat all;
  for (size_t i = 0; i < kMany; ++i) all.add("key-" + std::to_string(i));
  const mc_keys keys = all.keys();
  for (const size_t i : {size_t{0}, size_t{1}, kMany - 1}) {
    const std::string key = "key-" + std::to_string(i);
    REQUIRE(mc_store_put(store, key.data(), key.size(), "v", 1) == MC_OK);
  }
  std::vector<uint8_t> found(kMany, 9);
  REQUIRE(mc_store_exists_keys(store, &keys, nullptr, 0, found.data()) == MC_OK);
  CHECK(std::count(found.begin(), found.end(), 1) == 3);
  CHECK(found[kMany - 1] == 1);
  size_t matched = 0;
  REQUIRE(mc_store_match_keys(store, &keys, &matched) == MC_OK);
  CHECK(matched == 2);
  std::vector<mc_code> codes(kMany, MC_INTERNAL);
  REQUIRE(mc_store_remove_keys(store, &keys, 1, codes.data()) == MC_OK);
  CHECK(std::count(codes.begin(), codes.end(), MC_OK) == 3);
  CHECK(std::count(codes.begin(), codes.end(), MC_NOT_FOUND) == kMany - 3);
  // One key again and again: a prefix as long as the call.
  REQUIRE(mc_store_put(store, "k", 1, "v", 1) == MC_OK);
  Flat same;
  for (size_t i = 0; i < kMany; ++i) same.add("k");
  const mc_keys repeated = same.keys();
  REQUIRE(mc_store_match_keys(store, &repeated, &matched) == MC_OK);
  CHECK(matched == kMany);
}

}  // namespace
}  // namespace mc::capi
