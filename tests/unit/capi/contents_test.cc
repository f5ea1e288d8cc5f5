// What the store holds and where, and memory of this process for the pool, through the C interface.
#include <map>

#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

void put(mc_store* store, const std::string& key, size_t bytes = 1) {
  const std::string value(bytes, 'v');
  REQUIRE(mc_store_put(store, key.data(), key.size(), value.data(), value.size()) == MC_OK);
}

TEST_CASE("a listing has all keys with a prefix, in order, and ends when its reader says so") {
  Pool pool;
  mc_store* const store = pool.store();
  std::vector<std::string> names;
  for (int i = 0; i < 1500; ++i) names.push_back("m/" + std::to_string(10'000 + i));
  std::string value = "v";
  std::vector<mc_item> items;
  const mc_buffer buffer{value.data(), 1};
  for (const auto& name : names) items.push_back({key_of(name), &buffer, 1, nullptr, 0});
  REQUIRE(mc_store_put_items(store, items.data(), items.size(), nullptr, nullptr) == MC_OK);
  put(store, "n/other", 7);

  struct Seen {
    std::vector<std::string> keys;
    uint64_t bytes = 0;
    size_t most = SIZE_MAX;
  };
  const auto each = [](void* user, const char* key, size_t key_bytes, uint64_t bytes) {
    auto& seen = *static_cast<Seen*>(user);
    seen.keys.emplace_back(key, key_bytes);
    seen.bytes += bytes;
    return seen.keys.size() == seen.most ? 1 : 0;
  };
  Seen all;
  REQUIRE(mc_store_list(store, "m/", 2, each, &all) == MC_OK);
  CHECK(all.keys == names);
  CHECK(all.bytes == 1500);
  Seen some;
  some.most = 3;
  REQUIRE(mc_store_list(store, nullptr, 0, each, &some) == MC_OK);
  CHECK(some.keys.size() == 3);
  Seen none;
  REQUIRE(mc_store_list(store, "x", 1, each, &none) == MC_OK);
  CHECK(none.keys.empty());
  CHECK(mc_store_list(store, nullptr, 1, each, &none) == MC_INVALID);

  uint64_t removed = 0;
  REQUIRE(mc_store_remove_prefix(store, "m/", 2, 1, &removed) == MC_OK);
  CHECK(removed == 1500);
  // A leased key stays, unless forced.
  int found = 0;
  size_t matched = 0;
  const mc_key other{"n/other", 7};
  REQUIRE(mc_store_match_prefix(store, &other, 1, &matched) == MC_OK);
  CHECK(mc_store_remove_prefix(store, nullptr, 0, 0, &removed) == MC_BUSY);
  CHECK(removed == 0);
  CHECK(mc_store_remove_prefix(store, nullptr, 0, 1, &removed) == MC_OK);
  CHECK(removed == 1);
  REQUIRE(mc_store_exists(store, "n/other", 7, &found) == MC_OK);
  CHECK(found == 0);
}

TEST_CASE("locate says where a value lies") {
  Pool pool;
  put(pool.store(), "k", 5);
  mc_place places[2]{};
  places[0].size = sizeof(mc_place);
  size_t count = 99;
  REQUIRE(mc_store_locate(pool.store(), {"k", 1}, places, 2, &count) == MC_OK);
  CHECK(count == 1);
  CHECK(std::string(places[0].node) == "n");
  CHECK(places[0].tier == MC_TIER_MEMORY);
  CHECK(places[0].bytes == 5);
  CHECK(mc_store_locate(pool.store(), {"k", 1}, nullptr, 0, &count) == MC_OK);
  CHECK(count == 1);
  CHECK(mc_store_locate(pool.store(), {"none", 4}, places, 2, &count) == MC_NOT_FOUND);
  places[0].size = 8;
  CHECK(mc_store_locate(pool.store(), {"k", 1}, places, 2, &count) == MC_INVALID);
}

TEST_CASE("health tells of ready nodes and free bytes, and ends in time without a master") {
  Pool pool;
  uint32_t nodes = 99;
  uint64_t room = 0;
  REQUIRE(mc_store_health(pool.store(), 60'000, &nodes, &room) == MC_OK);
  CHECK(nodes == 1);
  CHECK(room == 64 * kMiB);
  CHECK(mc_store_health(pool.store(), 60'000, nullptr, nullptr) == MC_OK);
  pool.stop();
  const mc_code code = mc_store_health(pool.store(), 200, &nodes, &room);  // its timeout is 60 s
  CHECK((code == MC_TIMEOUT || code == MC_UNAVAILABLE));
}

TEST_CASE("memory of this process joins the pool, is preferred for its own puts, and leaves") {
  Pool pool(1 * kMiB);
  mc_store* const store = pool.store();
  mc_lend_options how{};
  how.size = sizeof how;
  mc_lent* node = nullptr;
  CHECK(mc_store_lend(store, &how, &node) == MC_INVALID);  // no bytes
  how.bytes = 16 * kMiB;
  how.numa = 4000;
  CHECK(mc_store_lend(store, &how, &node) == MC_INVALID);
  how.numa = 0;
  mc_memory* memory = nullptr;
  REQUIRE(mc_memory_allocate(mc_store_engine(store), 4096, MC_WRITABLE, &memory) == MC_OK);
  how.memory = memory;
  CHECK(mc_store_lend(store, &how, &node) == MC_INVALID);  // more than it has
  how.bytes = 0;
  CHECK(mc_store_lend(store, &how, &node) == MC_INVALID);  // a page
  how.numa = 1;
  CHECK(mc_store_lend(store, &how, &node) == MC_INVALID);
  how.numa = 0;
  mc_memory_free(memory);
  REQUIRE(mc_memory_allocate(mc_store_engine(store), 8192, 0, &memory) == MC_OK);
  how.memory = memory;
  CHECK(mc_store_lend(store, &how, &node) == MC_DENIED);
  how.memory = nullptr;
  how.bytes = 16 * kMiB;
  mc_memory_free(memory);
  REQUIRE(mc_store_lend(store, &how, &node) == MC_OK);
  pool.await_nodes(2);
  mc_put_options local{};
  local.size = sizeof local;
  local.flags = MC_PUT_PREFER_LOCAL;
  std::vector<char> value(2 * kMiB, 'v');  // more than the other node has
  const mc_buffer buffer{value.data(), value.size()};
  const mc_item item{{"k", 1}, &buffer, 1, &local, 0};
  mc_put_result stored{};
  REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
  CHECK(stored.outcome == MC_PUT_STORED);
  mc_place place{};
  place.size = sizeof place;
  size_t count = 0;
  REQUIRE(mc_store_locate(store, {"k", 1}, &place, 1, &count) == MC_OK);
  CHECK(std::string(place.node).starts_with("c-pool-"));
  const mc_item small{{"s", 1}, &buffer, 1, &local, 0};
  const mc_buffer little{value.data(), 100};
  mc_item second = small;
  second.buffers = &little;
  REQUIRE(mc_store_put_items(store, &second, 1, nullptr, &stored) == MC_OK);
  REQUIRE(mc_store_locate(store, {"s", 1}, &place, 1, &count) == MC_OK);
  CHECK(std::string(place.node).starts_with("c-pool-"));
  std::vector<char> back(value.size());
  REQUIRE(mc_store_get(store, "k", 1, back.data(), back.size(), nullptr) == MC_OK);
  CHECK(back == value);
  // What it holds goes with it.
  mc_lent_free(node);
  pool.await_nodes(1);
  int found = 1;
  REQUIRE(mc_store_exists(store, "k", 1, &found) == MC_OK);
  CHECK(found == 0);
  mc_lent_free(nullptr);
}

TEST_CASE("memory of the caller joins the pool: values lie in it, whole and between guards") {
  Pool pool(1 * kMiB);
  mc_store* const store = pool.store();
  std::vector<char> own(8 * kMiB, 'x');  // its words are no guards
  mc_memory* memory = nullptr;
  REQUIRE(mc_memory_register(mc_store_engine(store), own.data() + 1, own.size() - 1, nullptr,
                             MC_WRITABLE, &memory) == MC_OK);
  mc_lend_options how{};
  how.size = sizeof how;
  how.memory = memory;
  mc_lent* node = nullptr;
  REQUIRE(mc_store_lend(store, &how, &node) == MC_OK);
  uint64_t room = 0;
  uint32_t nodes = 0;
  const SteadyClock clock;
  for (const Time end = clock.now() + 60s; nodes != 2 && clock.now() < end;)
    REQUIRE(mc_store_health(store, 60'000, &nodes, &room) == MC_OK);
  REQUIRE(nodes == 2);
  CHECK(room > 1 * kMiB + own.size() * 512 / 513 - 3 * 4096);
  CHECK(room < 1 * kMiB + own.size());
  mc_put_options local{};
  local.size = sizeof local;
  local.flags = MC_PUT_PREFER_LOCAL;
  std::vector<char> value(2 * kMiB);
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 31 + i / 251);
  for (const char* key : {"a", "b", "c"}) {
    const mc_buffer buffer{value.data(), value.size()};
    const mc_item item{{key, 1}, &buffer, 1, &local, 0};
    mc_put_result stored{};
    REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
    CHECK(stored.outcome == MC_PUT_STORED);
    std::vector<char> back(value.size());
    REQUIRE(mc_store_get(store, key, 1, back.data(), back.size(), nullptr) == MC_OK);
    CHECK(back == value);
  }
  size_t places = 0;
  for (auto at = own.begin(); at != own.end(); at += static_cast<ptrdiff_t>(value.size())) {
    at = std::search(at, own.end(), value.begin(), value.end());
    if (at == own.end()) break;
    ++places;
  }
  CHECK(places == 3);  // in the caller's memory, and nowhere else
  mc_lent_free(node);
  mc_memory_free(memory);
}

}  // namespace
}  // namespace mc::capi
