// A timeout and progress of the calls of one thread, and the library's log, through the C
// interface.
#include "tests/unit/capi/peer.h"
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {
namespace own_calls {

// The calls that this thread begins within it go so.
struct CallsWith {
  explicit CallsWith(uint32_t timeout_ms, mc_each_progress progress = nullptr,
                     void* user = nullptr) {
    mc_call_options how{};
    how.size = sizeof how;
    how.timeout_ms = timeout_ms;
    how.progress = progress;
    how.user = user;
    REQUIRE(mc_call_with(&how) == MC_OK);
  }
  ~CallsWith() { CHECK(mc_call_with(nullptr) == MC_OK); }
  CallsWith(const CallsWith&) = delete;
  CallsWith& operator=(const CallsWith&) = delete;
};

struct Told {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  int answer = 0;
};

int tell(void* user, uint64_t done, uint64_t total) {
  auto& told = *static_cast<Told*>(user);
  told.all.emplace_back(done, total);
  return told.answer;
}

// The store's own timeout is ten minutes.
TEST_CASE("calls that have a timeout of their own end within it, on a queue too") {
  Pool pool;
  mc_store* const store = pool.open("10m");
  REQUIRE(mc_store_put(store, "k", 1, "value", 5) == MC_OK);
  pool.stop();
  char back[8];
  int found = 0;
  const std::string key = "k";
  const mc_key name = key_of(key);
  const Item one(key, back, sizeof back);
  const mc_item item = one;
  {
    const CallsWith soon(60);
    CHECK(mc_store_get(store, "k", 1, back, sizeof back, nullptr) == MC_TIMEOUT);
    CHECK(mc_store_exists(store, "k", 1, &found) == MC_TIMEOUT);
    CHECK(mc_store_remove(store, "k", 1, 0) == MC_TIMEOUT);
    mc_put_result stored{};
    REQUIRE(mc_store_put_items(store, &item, 1, nullptr, &stored) == MC_OK);
    CHECK(stored.code == MC_TIMEOUT);
  }
  const OwnQueue queue = open_queue(store);
  uint8_t there = 0;
  mc_get_result got{};
  {
    const CallsWith soon(60);
    REQUIRE(mc_store_exists_async(store, queue.get(), 1, &name, 1, &there) == MC_OK);
    REQUIRE(mc_store_get_async(store, queue.get(), 2, &item, 1, 0, &got) == MC_OK);
  }
  for (int i = 0; i < 2; ++i) {  // which is first, a thread of the queue or the one for late calls?
    const mc_done done = next(queue);
    if (done.tag == 1)
      CHECK(done.code == MC_TIMEOUT);
    else
      CHECK(done.failed == 1);
  }
  CHECK(got.code == MC_TIMEOUT);
  mc_store_close(store);
}

TEST_CASE("a function hears of values that move, and what it answers ends the call") {
  Pool pool;
  mc_store* const store = pool.store();
  std::vector<char> value(3 * kMiB, 'v'), back(value.size());
  const std::pair<uint64_t, uint64_t> whole(value.size(), value.size());
  Told told;
  {
    const CallsWith so(0, tell, &told);
    REQUIRE(mc_store_put(store, "k", 1, value.data(), value.size()) == MC_OK);
    REQUIRE(!told.all.empty());
    CHECK(told.all.back() == whole);
    told.all.clear();
    REQUIRE(mc_store_get(store, "k", 1, back.data(), back.size(), nullptr) == MC_OK);
    REQUIRE(!told.all.empty());
    CHECK(told.all.back() == whole);
    CHECK(back == value);
  }
  told.all.clear();
  REQUIRE(mc_store_get(store, "k", 1, back.data(), back.size(), nullptr) == MC_OK);
  CHECK(told.all.empty());
  const OwnQueue queue = open_queue(store);
  const std::string key = "k";
  const Item one(key, back.data(), back.size());
  const mc_item item = one;
  mc_get_result got{};
  {
    const CallsWith so(0, tell, &told);
    REQUIRE(mc_store_get_async(store, queue.get(), 1, &item, 1, 0, &got) == MC_OK);
  }
  CHECK(next(queue).code == MC_OK);
  REQUIRE(!told.all.empty());
  CHECK(told.all.back() == whole);

  mc_call_options wrong{};
  CHECK(mc_call_with(&wrong) == MC_INVALID);  // without its size
}

// Bytes are held back for ten minutes. The first news is that none has moved.
TEST_CASE("a put and a get end while their bytes move, as their function says") {
  Pool pool;
  REQUIRE(mc_store_put(pool.store(), "there", 5, "value", 5) == MC_OK);
  const FaultScript script(R"({"delay": "10m"})");
  mc_store* const store = pool.open("10m", "slow", nullptr, script.path.c_str());
  Told told;
  told.answer = 1;
  char back[8] = {};
  {
    const CallsWith so(0, tell, &told);
    CHECK(mc_store_put(store, "k", 1, "value", 5) == MC_UNAVAILABLE);
    CHECK(mc_store_get(store, "there", 5, back, sizeof back, nullptr) == MC_UNAVAILABLE);
  }
  CHECK(told.all == std::vector<std::pair<uint64_t, uint64_t>>{{0, 5}, {0, 5}});
  int found = 1;
  REQUIRE(mc_store_exists(pool.store(), "k", 1, &found) == MC_OK);
  CHECK(found == 0);
  CHECK(mc_store_put(pool.store(), "k", 1, "other", 5) == MC_OK);  // at once
  // A tag that is cancelled stops a get too.
  {
    const OwnQueue queue = open_queue(store);
    const std::string key = "there";
    const Item one(key, back, sizeof back);
    const mc_item item = one;
    mc_get_result got{};
    // Before it runs, and while its bytes move.
    for (int turns : {0, 10, 100, 1000, 10'000, 100'000}) {
      REQUIRE(mc_store_get_async(store, queue.get(), 4, &item, 1, 0, &got) == MC_OK);
      for (; turns > 0; --turns) std::this_thread::yield();
      mc_done done{};
      while (mc_queue_take(queue.get(), &done, 1) == 0) {
        (void)mc_queue_cancel(queue.get(), 4);
        std::this_thread::yield();
      }
      CHECK(done.code == MC_UNAVAILABLE);
      CHECK(got.code == MC_UNAVAILABLE);
    }
  }
  CHECK(std::string(back).empty());
  mc_store_close(store);
}

// Both nodes that have the value give no more bytes for ten minutes.
TEST_CASE("a get that went to a second replica too ends when its tag is cancelled") {
  Pool pool;
  mc_store* const second = pool.open("60s", "second");
  mc_lend_options how{};
  how.size = sizeof how;
  how.bytes = 16 * kMiB;
  mc_lent* node = nullptr;
  REQUIRE(mc_store_lend(second, &how, &node) == MC_OK);
  pool.await_nodes(2);
  mc_put_options twice{};
  twice.size = sizeof twice;
  twice.replicas = 2;
  const mc_buffer bytes{const_cast<char*>("value"), 5};
  const mc_item put{{"k", 1}, &bytes, 1, &twice, 0};
  mc_put_result stored{};
  REQUIRE(mc_store_put_items(pool.store(), &put, 1, nullptr, &stored) == MC_OK);
  REQUIRE(stored.outcome == MC_PUT_STORED);
  // So many reads tell how long one takes; a later one goes to the other node as well.
  const FaultScript script(R"({"op": "read", "skip": 20, "delay": "10m"})");
  mc_store* const store = pool.open("10m", "hedges", "tcp", script.path.c_str());
  char back[8] = {};
  for (int i = 0; i < 20; ++i)
    REQUIRE(mc_store_get(store, "k", 1, back, sizeof back, nullptr) == MC_OK);
  {
    const OwnQueue queue = open_queue(store);
    const std::string key = "k";
    const Item one(key, back, sizeof back);
    const mc_item item = one;
    mc_get_result got{};
    for (int turns : {1000, 10'000, 100'000, 1'000'000}) {
      REQUIRE(mc_store_get_async(store, queue.get(), 4, &item, 1, 0, &got) == MC_OK);
      for (; turns > 0; --turns) std::this_thread::yield();
      mc_done done{};
      while (mc_queue_take(queue.get(), &done, 1) == 0) {
        (void)mc_queue_cancel(queue.get(), 4);
        std::this_thread::yield();
      }
      CHECK(done.code == MC_UNAVAILABLE);
      CHECK(got.code == MC_UNAVAILABLE);
    }
  }
  mc_store_close(store);
  mc_lent_free(node);
  mc_store_close(second);
}

TEST_CASE("lines of the log go to who keeps them") {
  mc_log_keep(1);
  const auto each = [](void* user, const mc_log_line* line) {
    static_cast<std::vector<std::string>*>(user)->push_back(std::string(line->area) + " " +
                                                            line->text);
    CHECK(line->level == MC_LOG_WARN);
  };
  std::vector<std::string> lines;
  {
    mc_store* store = nullptr;
    REQUIRE(mc_store_setup("logs", "127.0.0.1:1", nullptr, &store) == MC_OK);
    mc_lend_options how{};
    how.size = sizeof how;
    how.bytes = 1 * kMiB;
    mc_lent* node = nullptr;
    REQUIRE(mc_store_lend(store, &how, &node) == MC_OK);
    CHECK(mc_log_take(60'000, each, &lines) >= 1);  // that no master answers
    mc_lent_free(node);
    mc_store_close(store);
  }
  REQUIRE(!lines.empty());
  CHECK(lines[0].starts_with("store "));
  mc_log_keep(0);
  while (mc_log_take(0, each, &lines) > 0) continue;
  CHECK(mc_log_take(60'000, each, &lines) == 0);
  CHECK(mc_log_take(0, nullptr, nullptr) == 0);
}

}  // namespace own_calls
}  // namespace
}  // namespace mc::capi
