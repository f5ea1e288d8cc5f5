// Memory of this process for the pool, when it leaves and when no master is there, through the C
// interface.
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {
namespace offering {

mc_lent* offer(mc_store* store, uint64_t bytes, uint32_t drain_ms) {
  mc_lend_options how{};
  how.size = sizeof how;
  how.bytes = bytes;
  how.drain_ms = drain_ms;
  mc_lent* node = nullptr;
  REQUIRE(mc_store_lend(store, &how, &node) == MC_OK);
  return node;
}

std::string node_of(mc_store* store, const std::string& key) {
  mc_place place{};
  place.size = sizeof place;
  size_t count = 0;
  REQUIRE(mc_store_locate(store, key_of(key), &place, 1, &count) == MC_OK);
  return place.node;
}

TEST_CASE("memory that leaves moves its values to other nodes first, for as long as it may") {
  store::MasterOptions master;
  master.lease_ttl = 20ms;  // to find where a value lies leases it there
  Pool pool(64 * kMiB, master);
  mc_store* const store = pool.store();
  mc_lent* const node = offer(store, 16 * kMiB, 60'000);
  pool.await_nodes(2);
  mc_put_options local{};
  local.size = sizeof local;
  local.flags = MC_PUT_PREFER_LOCAL;
  std::string value(100'000, 'v');
  const std::vector<std::string> names{"a", "b", "c"};
  for (const std::string& name : names) {
    const Item one(name, value.data(), value.size(), &local);
    const mc_item item = one;
    mc_put_result stored{};
    REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
    REQUIRE(stored.outcome == MC_PUT_STORED);
    REQUIRE(node_of(store, name).starts_with("c-pool-"));
  }
  mc_lent_free(node);
  pool.await_nodes(1);
  for (const std::string& name : names) {
    CHECK(node_of(store, name) == "n");
    std::string back(value.size(), '-');
    CHECK(mc_store_get(store, name.data(), 1, back.data(), back.size(), nullptr) == MC_OK);
    CHECK(back == value);
  }
}

// It would wait for ten minutes, or for a lease of an hour.
TEST_CASE("memory leaves once its values have moved") {
  store::MasterOptions master;
  master.lease_ttl = 1h;
  Pool pool(64 * kMiB, master);
  mc_store* const store = pool.store();
  mc_put_options local{};
  local.size = sizeof local;
  local.flags = MC_PUT_PREFER_LOCAL;
  std::string value(100'000, 'v');
  const auto put = [&](const std::string& name) {
    const Item one(name, value.data(), value.size(), &local);
    const mc_item item = one;
    mc_put_result stored{};
    REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
    REQUIRE(stored.outcome == MC_PUT_STORED);
  };
  mc_lent* const node = offer(store, 16 * kMiB, 600'000);
  pool.await_nodes(2);
  for (const char* name : {"a", "b"}) put(name);
  mc_lent_free(node);
  pool.await_nodes(1);
  CHECK(node_of(store, "a") == "n");
}

TEST_CASE("memory is offered where no master answers, and joins when one does") {
  std::string address;
  {
    const Pool early;
    address = early.address();
  }
  mc_options* options = nullptr;
  REQUIRE(mc_options_new(&options) == MC_OK);
  REQUIRE(mc_options_set(options, "timeout", "60s") == MC_OK);
  mc_store* store = nullptr;
  REQUIRE(mc_store_setup("c", address.c_str(), options, &store) == MC_OK);
  mc_options_free(options);
  mc_lent* const node = offer(store, 4 * kMiB, 0);
  mc_lent_free(offer(store, 4 * kMiB, 600'000));  // it never joined: there is nothing to move
  CHECK(mc_store_health(store, 100, nullptr, nullptr) == MC_UNAVAILABLE);
  {
    Pool late(4 * kMiB, {}, false, address);
    late.await_nodes(2);
    // The master goes with the pool; the node leaves all the same, with what it holds.
    mc_lent* const other = offer(store, 4 * kMiB, 50);
    late.await_nodes(3);
    late.stop();
    mc_lent_free(other);
  }
  mc_lent_free(node);
  mc_store_close(store);
}

TEST_CASE("more memory than there is, or a structure of another version, is not taken") {
  Pool pool(1 * kMiB);
  mc_lend_options how{};
  how.size = sizeof how;
  how.bytes = uint64_t{1} << 45;
  mc_lent* node = nullptr;
  CHECK(mc_store_lend(pool.store(), &how, &node) == MC_NO_SPACE);
  for (const int bits : {46, 47, 63}) {
    how.bytes = uint64_t{1} << bits;
    CHECK(mc_store_lend(pool.store(), &how, &node) == MC_NO_SPACE);
  }
  how.bytes = kMiB;
  how.size = 2;
  CHECK(mc_store_lend(pool.store(), &how, &node) == MC_INVALID);
  CHECK(node == nullptr);
}

}  // namespace offering
}  // namespace
}  // namespace mc::capi
