// Puts with options and results for each item, through the C interface.
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

mc_put_options put_options() {
  mc_put_options out{};
  out.size = sizeof out;
  return out;
}

std::string value_of(mc_store* store, const std::string& key) {
  std::string out(64, '-');
  size_t bytes = 0;
  if (mc_store_get(store, key.data(), key.size(), out.data(), out.size(), &bytes) != MC_OK)
    return "";
  return out.substr(0, bytes);
}

mc_put_result put_one(mc_store* store, const std::string& key, std::string value,
                      const mc_put_options* options = nullptr) {
  const Item one(key, value.data(), value.size(), options);
  const mc_item item = one;
  mc_put_result result{99, 99, 99};
  REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &result) == MC_OK);
  return result;
}

TEST_CASE("each put has its outcome: stored, existed, not admitted") {
  Pool pool;
  mc_put_options ephemeral = put_options();
  ephemeral.cls = MC_CLASS_EPHEMERAL;
  std::string a = "aaa", b = "bbbb";
  const mc_buffer buffers[] = {{a.data(), a.size()}, {b.data(), b.size()}};
  const mc_item all[] = {{{"a", 1}, &buffers[0], 1, nullptr, 0},
                         {{"e", 1}, &buffers[1], 1, &ephemeral, 0},
                         {{"b", 1}, &buffers[1], 1, nullptr, 0}};
  mc_put_result results[3];
  REQUIRE(mc_store_put_items(pool.store(), all, 2, nullptr, results) == MC_OK);
  CHECK(results[0].code == MC_OK);
  CHECK(results[0].outcome == MC_PUT_STORED);
  CHECK(results[0].bytes == 3);
  CHECK(results[1].code == MC_OK);
  CHECK(results[1].outcome == MC_PUT_NOT_ADMITTED);
  CHECK(results[1].bytes == 0);
  REQUIRE(mc_store_put_items(pool.store(), all, 3, nullptr, results) == MC_OK);
  CHECK(results[0].outcome == MC_PUT_EXISTED);
  CHECK(results[2].outcome == MC_PUT_STORED);
  CHECK(value_of(pool.store(), "b") == "bbbb");
  // Results may be left out.
  CHECK(mc_store_put_items(pool.store(), all, 3, nullptr, nullptr) == MC_OK);
}

TEST_CASE("a put that replaces takes the place of what is stored") {
  Pool pool;
  mc_put_options replace = put_options();
  replace.flags = MC_PUT_REPLACE;
  CHECK(put_one(pool.store(), "k", "new", &replace).outcome == MC_PUT_STORED);  // nothing was there
  CHECK(put_one(pool.store(), "k", "newer").outcome == MC_PUT_EXISTED);
  CHECK(value_of(pool.store(), "k") == "new");
  const mc_put_result result = put_one(pool.store(), "k", "newest", &replace);
  CHECK(result.code == MC_OK);
  CHECK(result.outcome == MC_PUT_STORED);
  CHECK(value_of(pool.store(), "k") == "newest");
}

TEST_CASE("options of a put reach the pool: its tenant, and a pin that keeps it") {
  Pool pool;
  mc_put_options other = put_options();
  other.tenant = "team";
  CHECK(put_one(pool.store(), "k", "theirs", &other).outcome == MC_PUT_STORED);
  CHECK(value_of(pool.store(), "k").empty());
  CHECK(put_one(pool.store(), "k", "ours").outcome == MC_PUT_STORED);
  CHECK(value_of(pool.store(), "k") == "ours");
  mc_put_options pinned = put_options();
  pinned.pin = MC_PIN_HARD;
  pinned.ttl_ms = 3'600'000;
  CHECK(put_one(pool.store(), "p", "kept", &pinned).outcome == MC_PUT_STORED);
  CHECK(mc_store_remove(pool.store(), "p", 1, 0) == MC_BUSY);
  CHECK(mc_store_remove(pool.store(), "p", 1, 1) == MC_OK);
}

TEST_CASE("what a put cannot say is invalid, and the error says why") {
  Pool pool;
  mc_store* const store = pool.store();
  std::string v = "v";
  const std::string key = "k";
  const auto code_of = [&](const mc_put_options& options) {
    const Item one(key, v.data(), v.size(), &options);
    const mc_item item = one;
    return mc_store_put_items(store, &item, 1, nullptr, nullptr);
  };
  mc_put_options wrong = put_options();
  wrong.size = 0;
  CHECK(code_of(wrong) == MC_INVALID);
  CHECK(error_text().find("size") != std::string::npos);
  wrong = put_options();
  wrong.cls = 4;
  CHECK(code_of(wrong) == MC_INVALID);
  wrong = put_options();
  wrong.pin = 4;
  CHECK(code_of(wrong) == MC_INVALID);
  wrong = put_options();
  wrong.flags = 4;
  CHECK(code_of(wrong) == MC_INVALID);
  wrong = put_options();
  wrong.ttl_ms = UINT64_MAX;
  CHECK(code_of(wrong) == MC_INVALID);
  wrong.ttl_ms = 1000;  // of nothing
  CHECK(code_of(wrong) == MC_INVALID);
  CHECK(error_text().find("ttl_ms") != std::string::npos);
  wrong.pin = MC_PIN_NONE;
  CHECK(code_of(wrong) == MC_INVALID);
  wrong = put_options();
  wrong.replicas = 9;
  CHECK(code_of(wrong) == MC_INVALID);
  CHECK(error_text().find("replicas") != std::string::npos);
  CHECK(mc_store_put(store, key.data(), static_cast<size_t>(-1), v.data(), 1) == MC_INVALID);
  CHECK(mc_store_put(store, nullptr, 1, v.data(), 1) == MC_INVALID);
  // A newer caller's structure: what this library does not know may be zero only.
  struct Newer {
    mc_put_options known;
    uint64_t more;
  } newer{put_options(), 0};
  newer.known.size = sizeof newer;
  CHECK(code_of(newer.known) == MC_OK);
  newer.more = 1;
  CHECK(code_of(newer.known) == MC_INVALID);

  const Item one(key, v.data(), v.size());
  mc_item item = one;
  item.reserved = 1;
  CHECK(mc_store_put_items(store, &item, 1, nullptr, nullptr) == MC_INVALID);
  item.reserved = 0;
  const mc_put_options fine = put_options();
  item.options = &fine;
  mc_code code = MC_OK;
  CHECK(mc_store_get_batch(store, &item, 1, 0, nullptr, &code) == MC_INVALID);
}

TEST_CASE("items fail on their own, with their codes") {
  Pool pool(8 * kMiB);
  std::vector<char> large(16 * kMiB);
  CHECK(put_one(pool.store(), "", "v").code == MC_INVALID);
  mc_put_result result{};
  const std::string key = "large";
  const Item one(key, large.data(), large.size());
  const mc_item item = one;
  REQUIRE(mc_store_put_items(pool.store(), &item, 1, nullptr, &result) == MC_OK);
  CHECK(result.code == MC_NO_SPACE);
  CHECK(put_one(pool.store(), "k", "value").code == MC_OK);
  char small = 0;
  CHECK(mc_store_get(pool.store(), "k", 1, &small, 1, nullptr) == MC_NO_SPACE);
  size_t bytes = 0;
  CHECK(mc_store_get(pool.store(), "absent", 6, &small, 1, &bytes) == MC_NOT_FOUND);
}

// The client asks the node again before it gives up.
TEST_CASE("a put on a node whose memory is read-only is denied") {
  Pool pool(64 * kMiB, {}, true);
  mc_store* const store = pool.open("60s", "only-shm", "shm");
  const std::string key = "k";
  std::string value = "value";
  const Item one(key, value.data(), value.size());
  const mc_item item = one;
  mc_put_result stored{};
  REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
  CHECK(stored.code == MC_DENIED);
  CHECK(mc_store_put(store, "k", 1, value.data(), value.size()) == MC_DENIED);
  int found = 1;
  REQUIRE(mc_store_exists(store, "k", 1, &found) == MC_OK);
  CHECK(found == 0);
  mc_store_close(store);
}

// As if the node had given the room to another value while the master still names it.
TEST_CASE("a value whose guard words have moved is stale") {
  Pool pool(1 * kMiB);
  mc_store* const store = pool.store();
  std::vector<uint64_t> own(4 * kMiB / sizeof(uint64_t));
  mc_memory* memory = nullptr;
  REQUIRE(mc_memory_register(mc_store_engine(store), own.data(), 4 * kMiB, nullptr, MC_WRITABLE,
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
  std::vector<char> value(2 * kMiB, 'v'), back(2 * kMiB);  // more than the other node has
  const std::string key = "k";
  const Item put(key, value.data(), value.size(), &local), get(key, back.data(), back.size());
  mc_item item = put;
  mc_put_result stored{};
  REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
  REQUIRE(stored.outcome == MC_PUT_STORED);
  // The first page that begins in the registered memory has the guard words.
  auto* words = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(own.data()) + 4095) &
                                            ~uintptr_t{4095});
  for (size_t i = 0; i < 4096 / sizeof(uint64_t); ++i) words[i] += 1000;
  item = get;
  mc_get_result got{};
  const OwnQueue queue = open_queue(store);
  REQUIRE(mc_store_get_async(store, queue.get(), 1, &item, 1, 0, &got) == MC_OK);
  CHECK(next(queue).failed == 1);
  CHECK(got.code == MC_STALE);
  CHECK(mc_store_get(store, "k", 1, back.data(), back.size(), nullptr) == MC_STALE);
  mc_lent_free(node);
  mc_memory_free(memory);
}

TEST_CASE("version and features") {
  CHECK((mc_abi_version() >> 16) == 0);
  CHECK((mc_abi_version() & 0xffff) > 0);
  CHECK((mc_features() & MC_FEATURE_QUEUE) != 0);
  CHECK((mc_features() & MC_FEATURE_BLOCKS) != 0);
}

// Each call has a client of its own: the last of eight threads would take eight times the timeout.
TEST_CASE(
    "every call ends within its timeout when master and node stand still, from eight threads") {
  Pool pool;
  mc_store* const store = pool.open("1s");
  std::string value = "value";
  REQUIRE(mc_store_put(store, "k", 1, value.data(), value.size()) == MC_OK);
  pool.stop();
  std::vector<std::thread> threads;
  std::vector<Duration> took(8);
  std::vector<mc_code> codes(8);
  SteadyClock clock;
  for (size_t i = 0; i < took.size(); ++i)
    threads.emplace_back([&, i] {
      const Time start = clock.now();
      char back[8];
      int found = 0;
      codes[i] = i % 2 == 0 ? mc_store_get(store, "k", 1, back, sizeof back, nullptr)
                            : mc_store_exists(store, "k", 1, &found);
      took[i] = clock.now() - start;
    });
  for (auto& t : threads) t.join();
  for (size_t i = 0; i < took.size(); ++i) {
    CHECK((codes[i] == MC_TIMEOUT || codes[i] == MC_UNAVAILABLE));
    CHECK(took[i] < 6s * kSlow);
  }
  mc_store_close(store);
}

}  // namespace
}  // namespace mc::capi
