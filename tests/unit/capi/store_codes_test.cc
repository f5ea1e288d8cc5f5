// The codes of the store's calls that only a fault makes happen, through the C interface.
#include <algorithm>
#include <functional>
#include <utility>

#include "tests/unit/capi/peer.h"
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {
namespace store_codes {

const std::string kKey = "k";
const std::string kRank = "rank@";
const uint8_t kHash[32] = {};
const uint32_t kEnd = 1;
const mc_keys kFlat{"k", &kEnd, 1};
const uint32_t kBlock = 0;

// Where the calls put what they find.
struct Places {
  char data[64] = {};
  mc_buffer buffer{data, sizeof data};
  mc_item item{{"k", 1}, &buffer, 1, nullptr, 0};
  mc_piece piece{data, 0, 4, 1, 0, 0};
  mc_range_item range{{"k", 1}, &piece, 1};
  mc_put_result stored{};
  mc_get_result got{};
  mc_key key{"k", 1}, rank{"rank@", 5};
  size_t n = 0;
  uint64_t bytes = 0;
  uint32_t nodes = 0;
  int found = 0;
  uint8_t there = 0;
  mc_code code = MC_OK;
};

int ignore(void*, const char*, size_t, uint64_t) { return 0; }

using Call = std::pair<std::string, std::function<mc_code(mc_store*, Places&)>>;

// All that wait for an answer: the code of the call, or of its one item.
const std::vector<Call> kCalls = {
    {"put", [](mc_store* s, Places&) { return mc_store_put(s, "k", 1, "v", 1); }},
    {"get", [](mc_store* s,
               Places& p) { return mc_store_get(s, "k", 1, p.data, sizeof p.data, nullptr); }},
    {"size", [](mc_store* s, Places& p) { return mc_store_size(s, "k", 1, &p.n); }},
    {"exists", [](mc_store* s, Places& p) { return mc_store_exists(s, "k", 1, &p.found); }},
    {"remove", [](mc_store* s, Places&) { return mc_store_remove(s, "k", 1, 0); }},
    {"put_batch",
     [](mc_store* s, Places& p) {
       const mc_code code = mc_store_put_batch(s, &p.item, 1, &p.code);
       return code == MC_OK ? p.code : code;
     }},
    {"get_batch",
     [](mc_store* s, Places& p) {
       const mc_code code = mc_store_get_batch(s, &p.item, 1, 0, nullptr, &p.code);
       return code == MC_OK ? p.code : code;
     }},
    {"exists_batch",
     [](mc_store* s, Places& p) { return mc_store_exists_batch(s, &p.key, 1, &p.there); }},
    {"match_prefix",
     [](mc_store* s, Places& p) { return mc_store_match_prefix(s, &p.key, 1, &p.n); }},
    {"remove_batch",
     [](mc_store* s, Places& p) {
       const mc_code code = mc_store_remove_batch(s, &p.key, 1, 0, &p.code);
       return code == MC_OK ? p.code : code;
     }},
    {"put_items",
     [](mc_store* s, Places& p) {
       const mc_code code = mc_store_put_items(s, &p.item, 1, nullptr, &p.stored);
       return code == MC_OK ? static_cast<mc_code>(p.stored.code) : code;
     }},
    {"put_keys",
     [](mc_store* s, Places& p) {
       const mc_code code =
           mc_store_put_keys(s, &kFlat, &p.buffer, nullptr, nullptr, 0, nullptr, &p.stored);
       return code == MC_OK ? static_cast<mc_code>(p.stored.code) : code;
     }},
    {"get_keys",
     [](mc_store* s, Places& p) {
       const mc_code code = mc_store_get_keys(s, &kFlat, &p.buffer, nullptr, nullptr, 0, 0, &p.got);
       return code == MC_OK ? static_cast<mc_code>(p.got.code) : code;
     }},
    {"exists_keys",
     [](mc_store* s, Places& p) { return mc_store_exists_keys(s, &kFlat, nullptr, 0, &p.there); }},
    {"match_keys", [](mc_store* s, Places& p) { return mc_store_match_keys(s, &kFlat, &p.n); }},
    {"remove_keys",
     [](mc_store* s, Places& p) {
       const mc_code code = mc_store_remove_keys(s, &kFlat, 0, &p.code);
       return code == MC_OK ? p.code : code;
     }},
    {"prefetch_keys",
     [](mc_store* s, Places& p) { return mc_store_prefetch_keys(s, &kFlat, &p.bytes); }},
    {"get_ranges",
     [](mc_store* s, Places& p) {
       const mc_code code = mc_store_get_ranges(s, &p.range, 1, 0, &p.got);
       return code == MC_OK ? static_cast<mc_code>(p.got.code) : code;
     }},
    {"list", [](mc_store* s, Places&) { return mc_store_list(s, "k", 1, ignore, nullptr); }},
    {"remove_prefix",
     [](mc_store* s, Places& p) { return mc_store_remove_prefix(s, "k", 1, 0, &p.bytes); }},
    {"locate", [](mc_store* s, Places& p) { return mc_store_locate(s, p.key, nullptr, 0, &p.n); }},
    {"prefetch", [](mc_store* s, Places& p) { return mc_store_prefetch(s, &p.key, 1, &p.bytes); }},
    {"match_blocks",
     [](mc_store* s, Places& p) {
       return mc_store_match_blocks(s, &p.rank, 1, kHash, sizeof kHash, 1, &p.n);
     }},
    {"health", [](mc_store* s, Places& p) { return mc_store_health(s, 60, &p.nodes, &p.bytes); }},
};

TEST_CASE("every call is unavailable where no master listens") {
  mc_options* options = nullptr;
  REQUIRE(mc_options_new(&options) == MC_OK);
  REQUIRE(mc_options_set(options, "timeout", "60ms") == MC_OK);
  mc_store* store = nullptr;
  REQUIRE(mc_store_setup("c", "127.0.0.1:1", options, &store) == MC_OK);
  mc_options_free(options);
  for (const Call& call : kCalls) {
    CAPTURE(call.first);
    Places places;
    CHECK(call.second(store, places) == MC_UNAVAILABLE);
  }
  mc_store_close(store);
}

// A store of `pool` that a master has answered, however short its timeout is.
mc_store* answered(const Pool& pool, const char* timeout) {
  mc_store* const store = pool.open(timeout);
  int found = 0;
  while (mc_store_exists(store, "k", 1, &found) != MC_OK) std::this_thread::yield();
  return store;
}

TEST_CASE("every call is a timeout where the master stands still") {
  Pool pool;
  mc_store* const store = answered(pool, "60ms");
  pool.stop();
  for (const Call& call : kCalls) {
    CAPTURE(call.first);
    Places places;
    CHECK(call.second(store, places) == MC_TIMEOUT);
  }
  mc_store_close(store);
}

TEST_CASE("a match in a hurry is a timeout, or unavailable where no master ever answered") {
  Pool pool;
  mc_store *const known = answered(pool, "60s"), *const fresh = pool.open("60s", "fresh");
  pool.stop();
  const mc_key rank = key_of(kRank);
  const auto match = [&](mc_store* store) {
    size_t n = 0;
    return mc_store_match_blocks_within(store, &rank, 1, kHash, sizeof kHash, 1, 20, &n);
  };
  CHECK(match(known) == MC_TIMEOUT);
  CHECK(match(known) == MC_TIMEOUT);
  CHECK(match(fresh) == MC_UNAVAILABLE);
  mc_store_close(fresh);
  mc_store_close(known);
}

TEST_CASE("one value: a size of none, and a removal of none or of one that is leased") {
  Pool pool;
  mc_store* const store = pool.store();
  size_t bytes = 9;
  CHECK(mc_store_size(store, "k", 1, &bytes) == MC_NOT_FOUND);
  CHECK(mc_store_remove(store, "k", 1, 1) == MC_NOT_FOUND);
  REQUIRE(mc_store_put(store, "k", 1, "value", 5) == MC_OK);
  CHECK(mc_store_size(store, "k", 1, &bytes) == MC_OK);  // leases it
  CHECK(bytes == 5);
  CHECK(mc_store_remove(store, "k", 1, 0) == MC_BUSY);
  CHECK(mc_store_remove(store, "k", 1, 1) == MC_OK);
}

// Its writer's bytes are held back for ten minutes.
TEST_CASE("a put of a key that another client writes is busy, replacing it too") {
  Pool pool;
  const FaultScript script(R"({"op": "write", "delay": "10m"})");
  mc_store* const slow = pool.open("10m", "slow", nullptr, script.path.c_str());
  OwnQueue queue = open_queue(slow);
  std::string value = "value";
  const Item first(kKey, value.data(), value.size());
  mc_item item = first;
  mc_put_result held{99, 0, 0};
  REQUIRE(mc_store_put_async(slow, queue.get(), 1, &item, 1, nullptr, &held) == MC_OK);
  uint64_t room = 64 * kMiB;
  while (room == 64 * kMiB)  // until it has its place
    REQUIRE(mc_store_health(pool.store(), 60'000, nullptr, &room) == MC_OK);
  CHECK(mc_store_put(pool.store(), "k", 1, "other", 5) == MC_BUSY);
  mc_put_options replace{};
  replace.size = sizeof replace;
  replace.flags = MC_PUT_REPLACE;
  mc_put_result result{99, 0, 0};
  REQUIRE(mc_store_put_items(pool.store(), &item, 1, &replace, &result) == MC_OK);
  CHECK(result.code == MC_BUSY);
  queue.reset();  // gives it up
  CHECK(held.code == MC_UNAVAILABLE);
  REQUIRE(mc_store_put_items(pool.store(), &item, 1, &replace, &result) == MC_OK);
  CHECK(result.code == MC_OK);
  mc_store_close(slow);
}

TEST_CASE("a value whose bytes changed where they lie is corrupt, and never got") {
  Pool pool(1 * kMiB);
  mc_store* const store = pool.store();
  std::vector<char> own(4 * kMiB);
  mc_memory* memory = nullptr;
  REQUIRE(mc_memory_register(mc_store_engine(store), own.data(), own.size(), nullptr, MC_WRITABLE,
                             &memory) == MC_OK);
  mc_lend_options how{};
  how.size = sizeof how;
  how.memory = memory;
  mc_lent* node = nullptr;
  REQUIRE(mc_store_lend(store, &how, &node) == MC_OK);
  pool.await_nodes(2);
  mc_put_options local{};
  local.size = sizeof local;
  local.flags = MC_PUT_PREFER_LOCAL;
  std::string value(3000, '-');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>('a' + i % 19);
  for (const std::string key : {"a", "b"}) {
    const Item one(key, value.data(), value.size(), &local);
    const mc_item item = one;
    mc_put_result stored{};
    REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
    REQUIRE(stored.outcome == MC_PUT_STORED);
  }
  for (auto at = own.begin(); at != own.end(); ++at) {
    at = std::search(at, own.end(), value.begin(), value.end());
    if (at == own.end()) break;
    at[1000] = '!';
  }
  std::string back(value.size(), '-');
  CHECK(mc_store_get(store, "a", 1, back.data(), back.size(), nullptr) == MC_CORRUPT);
  const std::string key = "b";
  const Item one(key, back.data(), back.size());
  const mc_item item = one;
  mc_get_result got{};
  const OwnQueue queue = open_queue(store);
  REQUIRE(mc_store_get_async(store, queue.get(), 1, &item, 1, 0, &got) == MC_OK);
  CHECK(next(queue).failed == 1);
  CHECK(got.code == MC_CORRUPT);
  CHECK(got.flags == 0);
  mc_lent_free(node);
  mc_memory_free(memory);
}

TEST_CASE("a list that is cancelled ends before its next thousand keys") {
  Pool pool;
  mc_store* const store = pool.store();
  std::vector<std::string> names;
  for (int i = 0; i < 2500; ++i) names.push_back(std::to_string(10'000 + i));
  std::string value = "v";
  const mc_buffer buffer{value.data(), 1};
  std::vector<mc_item> items;
  for (const auto& name : names) items.push_back({key_of(name), &buffer, 1, nullptr, 0});
  REQUIRE(mc_store_put_items(store, items.data(), items.size(), nullptr, nullptr) == MC_OK);
  const OwnQueue queue = open_queue(store);
  struct Seen {
    mc_queue* queue;
    size_t keys = 0;
  } seen{queue.get()};
  const auto each = [](void* user, const char*, size_t, uint64_t) {
    auto& s = *static_cast<Seen*>(user);
    if (s.keys++ == 0) (void)mc_queue_cancel(s.queue, 6);
    return 0;
  };
  REQUIRE(mc_store_list_async(store, queue.get(), 6, "", 0, each, &seen) == MC_OK);
  CHECK(next(queue).code == MC_UNAVAILABLE);
  CHECK(seen.keys == 1000);
}

// Every call that takes a queue. `codes` and the like outlive it.
std::vector<mc_code> queue_all(mc_store* s, mc_queue* q, mc_kv_layout* layout, Places& p) {
  mc_kv_blocks blocks{};
  blocks.size = sizeof blocks;
  blocks.hash_bytes = sizeof kHash;
  blocks.hashes = kHash;
  blocks.blocks = &kBlock;
  blocks.count = 1;
  return {mc_store_put_async(s, q, 1, &p.item, 1, nullptr, &p.stored),
          mc_store_get_async(s, q, 1, &p.item, 1, 0, &p.got),
          mc_store_exists_async(s, q, 1, &p.key, 1, &p.there),
          mc_store_put_keys(s, &kFlat, &p.buffer, nullptr, q, 1, nullptr, &p.stored),
          mc_store_get_keys(s, &kFlat, &p.buffer, nullptr, q, 1, 0, &p.got),
          mc_store_exists_keys(s, &kFlat, q, 1, &p.there),
          mc_store_size_async(s, q, 1, p.key, &p.bytes),
          mc_store_match_async(s, q, 1, &kFlat, &p.n),
          mc_store_remove_async(s, q, 1, &kFlat, 0, &p.code),
          mc_store_health_async(s, q, 1, 60, &p.nodes, &p.bytes),
          mc_store_list_async(s, q, 1, "k", 1, ignore, nullptr),
          mc_store_remove_prefix_async(s, q, 1, "k", 1, 0, &p.bytes),
          mc_store_match_blocks_async(s, q, 1, &p.rank, 1, kHash, sizeof kHash, 1, &p.n),
          mc_store_put_blocks(s, layout, &blocks, q, 1, nullptr, &p.stored),
          mc_store_get_blocks(s, layout, &blocks, q, 1, 0, &p.got)};
}

TEST_CASE("every call on a queue that is full is busy, and begins nothing") {
  Pool pool;
  mc_store* const store = pool.store();
  char cache[16] = {};
  const mc_kv_region region{sizeof region, 1, cache, 16, 16, 0};
  mc_kv_layout* layout = nullptr;
  REQUIRE(mc_kv_layout_new(store, &region, 1, 1, &layout) == MC_OK);
  Places places;
  {
    const OwnQueue queue = open_queue(store, 1, 1);
    uint8_t found = 0;
    REQUIRE(mc_store_exists_async(store, queue.get(), 1, &places.key, 1, &found) == MC_OK);
    for (const mc_code code : queue_all(store, queue.get(), layout, places)) CHECK(code == MC_BUSY);
    (void)next(queue);
  }
  const OwnQueue queue = open_queue(store);
  const auto codes = queue_all(store, queue.get(), layout, places);
  for (const mc_code code : codes) CHECK(code == MC_OK);
  for (size_t i = 0; i < codes.size(); ++i) (void)next(queue);
  mc_kv_layout_free(layout);
}

}  // namespace store_codes
}  // namespace
}  // namespace mc::capi
