// Calls that return at once, through the C interface.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>

#include "capi/store_calls.h"
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

bool readable(const OwnQueue& queue) {
  pollfd p{mc_queue_fd(queue.get()), POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

// Keeps a thread of a queue until it may go on.
struct Keeps {
  Keeps(mc_store* store, const OwnQueue& queue, uint64_t tag) {
    REQUIRE(mc_store_put(store, "kept", 4, "v", 1) == MC_OK);
    const mc_each each = [](void* user, const char*, size_t, uint64_t) {
      auto* const of = static_cast<Keeps*>(user);
      of->begun = true;
      while (!of->go_on) std::this_thread::yield();
      return 0;
    };
    REQUIRE(mc_store_list_async(store, queue.get(), tag, "kept", 4, each, this) == MC_OK);
    while (!begun) std::this_thread::yield();
  }
  std::atomic<bool> begun{false}, go_on{false};
};

// A get that waits until `key` is put.
struct Waiting {
  Waiting(mc_store* store, const OwnQueue& queue, std::string k, uint64_t tag)
      : key(std::move(k)), one(key, data, sizeof data) {
    const mc_item item = one;
    REQUIRE(mc_store_get_async(store, queue.get(), tag, &item, 1, 60'000, &result) == MC_OK);
  }
  std::string key;
  char data[16] = {};
  Item one;
  mc_get_result result{99, 0, 0};
};

TEST_CASE("calls on a queue are done later, by tag, and its descriptor is readable meanwhile") {
  Pool pool;
  mc_store* const store = pool.store();
  const OwnQueue queue = open_queue(store, 2);
  CHECK(!readable(queue));
  CHECK(mc_queue_wait(queue.get(), 1) == MC_TIMEOUT);
  mc_done done{};
  CHECK(mc_queue_take(queue.get(), &done, 1) == 0);

  std::string value = "seven..";
  const std::string key = "k", absent = "absent";
  mc_put_result stored{99, 99, 99};
  {  // the items may go when the call returns
    const Item one(key, value.data(), value.size());
    const mc_item item = one;
    REQUIRE(mc_store_put_async(store, queue.get(), 7, &item, 1, nullptr, &stored) == MC_OK);
  }
  done = next(queue);
  CHECK(done.tag == 7);
  CHECK(done.code == MC_OK);
  CHECK(done.failed == 0);
  CHECK(done.bytes == 7);
  CHECK(stored.outcome == MC_PUT_STORED);
  CHECK(!readable(queue));

  char back[16] = {};
  char other[16] = {};
  const Item a(key, back, sizeof back), b(absent, other, sizeof other);
  const mc_item items[] = {a, b};
  mc_get_result got[2];
  REQUIRE(mc_store_get_async(store, queue.get(), 8, items, 2, 0, got) == MC_OK);
  REQUIRE(mc_queue_wait(queue.get(), 60'000) == MC_OK);
  CHECK(readable(queue));
  done = next(queue);
  CHECK(done.tag == 8);
  CHECK(done.code == MC_OK);
  CHECK(done.failed == 1);
  CHECK(done.bytes == 7);
  CHECK(got[0].code == MC_OK);
  CHECK(got[0].bytes == 7);
  CHECK(std::string(back) == value);
  CHECK(got[1].code == MC_NOT_FOUND);

  const mc_key keys[] = {key_of(absent), key_of(key)};
  uint8_t found[2] = {9, 9};
  REQUIRE(mc_store_exists_async(store, queue.get(), 9, keys, 2, found) == MC_OK);
  done = next(queue);
  CHECK(done.failed == 1);
  CHECK(found[0] == 0);
  CHECK(found[1] == 1);
}

TEST_CASE("short questions on a queue are answered as without one") {
  Pool pool;
  mc_store* const store = pool.store();
  const OwnQueue queue = open_queue(store, 1);
  REQUIRE(mc_store_put(store, "a1", 2, "value", 5) == MC_OK);
  REQUIRE(mc_store_put(store, "b2", 2, "other", 5) == MC_OK);
  uint64_t bytes = 0;
  REQUIRE(mc_store_size_async(store, queue.get(), 1, {"a1", 2}, &bytes) == MC_OK);
  CHECK(next(queue).code == MC_OK);
  CHECK(bytes == 5);
  REQUIRE(mc_store_size_async(store, queue.get(), 2, {"none", 4}, &bytes) == MC_OK);
  CHECK(next(queue).code == MC_NOT_FOUND);

  const uint32_t ends[] = {2, 4, 6};
  const mc_keys keys{"a1b2cc", ends, 3};
  size_t matched = 9;
  REQUIRE(mc_store_match_async(store, queue.get(), 3, &keys, &matched) == MC_OK);
  CHECK(next(queue).code == MC_OK);
  CHECK(matched == 2);
  mc_code codes[] = {MC_INTERNAL, MC_INTERNAL, MC_INTERNAL};
  REQUIRE(mc_store_remove_async(store, queue.get(), 4, &keys, 0, codes) == MC_OK);
  mc_done done = next(queue);
  CHECK(done.failed == 2);  // the match leased them
  CHECK(codes[0] == MC_BUSY);
  CHECK(codes[2] == MC_NOT_FOUND);
  REQUIRE(mc_store_remove_async(store, queue.get(), 5, &keys, 1, codes) == MC_OK);
  CHECK(next(queue).failed == 0);
  CHECK(codes[1] == MC_OK);

  uint32_t nodes = 0;
  uint64_t room = 0;
  REQUIRE(mc_store_health_async(store, queue.get(), 6, 60'000, &nodes, &room) == MC_OK);
  CHECK(next(queue).code == MC_OK);
  CHECK(nodes == 1);
  CHECK(room > 0);

  REQUIRE(mc_store_put(store, "p@ab", 4, "block", 5) == MC_OK);
  const mc_key prefix{"p@", 2};
  const uint8_t hashes[] = {0xab, 0xcd};
  REQUIRE(mc_store_match_blocks_async(store, queue.get(), 7, &prefix, 1, hashes, 1, 2, &matched) ==
          MC_OK);
  CHECK(next(queue).code == MC_OK);
  CHECK(matched == 1);
  CHECK(mc_store_match_blocks_async(store, queue.get(), 8, &prefix, 1, nullptr, 1, 2, &matched) ==
        MC_INVALID);
  CHECK(mc_store_size_async(store, nullptr, 8, {"a1", 2}, &bytes) == MC_INVALID);
  CHECK(mc_store_match_async(store, nullptr, 8, &keys, &matched) == MC_INVALID);
  CHECK(mc_store_remove_async(store, nullptr, 8, &keys, 0, codes) == MC_INVALID);
  CHECK(mc_store_health_async(store, nullptr, 8, 9, &nodes, &room) == MC_INVALID);
}

TEST_CASE("keys are listed and removed by a prefix on a queue, and a call that is cancelled ends") {
  Pool pool;
  mc_store* const store = pool.store();
  const OwnQueue queue = open_queue(store, 1);
  for (const char* key : {"a1", "a2", "b1"}) REQUIRE(mc_store_put(store, key, 2, "v", 1) == MC_OK);
  std::string found;
  const mc_each each = [](void* user, const char* key, size_t bytes, uint64_t size) {
    *static_cast<std::string*>(user) += std::string(key, bytes) + std::to_string(size) + ' ';
    return 0;
  };
  REQUIRE(mc_store_list_async(store, queue.get(), 1, "a", 1, each, &found) == MC_OK);
  CHECK(next(queue).code == MC_OK);
  CHECK(found == "a11 a21 ");
  uint64_t removed = 9;
  uint64_t bytes = 0;
  REQUIRE(mc_store_size(store, "a1", 2, &bytes) == MC_OK);  // leased
  REQUIRE(mc_store_remove_prefix_async(store, queue.get(), 2, "a", 1, 0, &removed) == MC_OK);
  CHECK(next(queue).code == MC_BUSY);
  CHECK(removed == 1);
  REQUIRE(mc_store_remove_prefix_async(store, queue.get(), 3, "", 0, 1, &removed) == MC_OK);
  CHECK(next(queue).code == MC_OK);
  CHECK(removed == 2);
  CHECK(mc_store_list_async(store, nullptr, 4, "a", 1, each, &found) == MC_INVALID);
  CHECK(mc_store_list_async(store, queue.get(), 4, nullptr, 1, each, &found) == MC_INVALID);
  CHECK(mc_store_remove_prefix_async(store, nullptr, 4, "a", 1, 0, &removed) == MC_INVALID);
}

TEST_CASE("a queue takes no more than its depth until what is done was taken") {
  Pool pool;
  const std::string key = "k";
  const mc_key one = key_of(key);
  uint8_t found = 0;  // outlives the queue, on which calls are left
  const OwnQueue queue = open_queue(pool.store(), 1, 3);
  for (uint64_t tag = 0; tag < 3; ++tag)
    REQUIRE(mc_store_exists_async(pool.store(), queue.get(), tag, &one, 1, &found) == MC_OK);
  for (int i = 0; i < 3; ++i) {
    CHECK(mc_store_exists_async(pool.store(), queue.get(), 9, &one, 1, &found) == MC_BUSY);
    (void)next(queue);
    REQUIRE(mc_store_exists_async(pool.store(), queue.get(), 3, &one, 1, &found) == MC_OK);
  }
  CHECK(mc_store_exists_async(pool.store(), nullptr, 9, &one, 1, &found) == MC_INVALID);
  mc_queue* none = nullptr;
  CHECK(mc_queue_open(mc_store_engine(pool.store()), 65, 0, &none) == MC_INVALID);
  CHECK(mc_queue_open(mc_store_engine(pool.store()), 1, UINT32_MAX, &none) == MC_INVALID);
}

TEST_CASE("a call that has not begun is cancelled, and touches its memory no more") {
  Pool pool;
  mc_store* const store = pool.store();
  const OwnQueue queue = open_queue(store, 1);
  Keeps first(store, queue, 1);
  std::string before = "before";
  const std::string key = "k";
  REQUIRE(mc_store_put(store, "k", 1, "after!", 6) == MC_OK);
  mc_get_result got{99, 0, 0};
  const Item one(key, before.data(), before.size());
  const mc_item item = one;
  REQUIRE(mc_store_get_async(store, queue.get(), 2, &item, 1, 0, &got) == MC_OK);
  REQUIRE(mc_queue_cancel(queue.get(), 2) == MC_OK);
  mc_done done = next(queue);
  CHECK(done.tag == 2);
  CHECK(done.code == MC_UNAVAILABLE);
  CHECK(done.failed == 1);
  CHECK(got.code == MC_UNAVAILABLE);
  CHECK(before == "before");
  CHECK(mc_queue_cancel(queue.get(), 2) == MC_NOT_FOUND);
  // What has begun is carried out.
  first.go_on = true;
  done = next(queue);
  CHECK(done.tag == 1);
  CHECK(done.code == MC_OK);
}

TEST_CASE("gets that wait for values keep no other call waiting, however many they are") {
  Pool pool;
  mc_store* const store = pool.store();
  const OwnQueue queue = open_queue(store, 1);
  std::vector<std::unique_ptr<Waiting>> waiting;
  for (uint64_t tag = 0; tag < 20; ++tag)
    waiting.push_back(std::make_unique<Waiting>(store, queue, "w" + std::to_string(tag), tag));
  for (uint64_t tag = 20; tag-- > 0;) {  // the last that waits is served first
    std::string value = "value";
    const Item one(waiting[tag]->key, value.data(), value.size());
    const mc_item item = one;
    REQUIRE(mc_store_put_async(store, queue.get(), 100, &item, 1, nullptr, nullptr) == MC_OK);
    bool stored = false, got = false;
    while (!stored || !got) {
      const mc_done done = next(queue);
      CHECK(done.bytes == 5);
      stored = stored || done.tag == 100;
      got = got || done.tag == tag;
    }
    CHECK(std::string(waiting[tag]->data) == "value");
  }
}

TEST_CASE("a call's time goes by while it waits for a thread") {
  Pool pool;
  mc_store* const store = pool.store();
  mc_store* const quick = pool.open("50ms", "quick");
  OwnQueue queue = open_queue(store, 1);
  Keeps first(store, queue, 1);
  const std::string key = "k";
  const mc_key name = key_of(key);
  uint8_t found = 0;
  REQUIRE(mc_store_exists_async(quick, queue.get(), 2, &name, 1, &found) == MC_OK);
  mc_done done = next(queue);
  CHECK(done.tag == 2);
  CHECK(done.code == MC_TIMEOUT);
  // Of several items each has a code.
  char data[8] = {};
  const Item one(key, data, sizeof data);
  const mc_item item = one;
  mc_put_result stored{};
  REQUIRE(mc_store_put_async(quick, queue.get(), 3, &item, 1, nullptr, &stored) == MC_OK);
  mc_get_result got{};
  const mc_call_options how{sizeof how, 100, nullptr, nullptr};
  REQUIRE(mc_call_with(&how) == MC_OK);
  REQUIRE(mc_store_get_async(store, queue.get(), 4, &item, 1, 100, &got) == MC_OK);
  REQUIRE(mc_call_with(nullptr) == MC_OK);
  for (int i = 0; i < 2; ++i) {
    done = next(queue);
    CHECK(done.code == MC_OK);
    CHECK(done.failed == 1);
  }
  CHECK(stored.code == MC_TIMEOUT);
  CHECK(got.code == MC_TIMEOUT);
  REQUIRE(mc_store_health_async(store, queue.get(), 5, 20, nullptr, nullptr) == MC_OK);
  CHECK(next(queue).code == MC_TIMEOUT);
  first.go_on = true;
  CHECK(next(queue).tag == 1);
  queue.reset();
  mc_store_close(quick);
}

// It would wait for ten minutes.
TEST_CASE("a get that waits for a value is cancelled while it runs, and says what it got") {
  Pool pool;
  mc_store* const store = pool.store();
  const OwnQueue queue = open_queue(store, 1);
  REQUIRE(mc_store_put(store, "there", 5, "value", 5) == MC_OK);
  char a[8] = {}, b[8] = {};
  const std::string there = "there", never = "never";
  const Item first(there, a, sizeof a), second(never, b, sizeof b);
  const mc_item items[] = {first, second};
  mc_get_result got[2];
  REQUIRE(mc_store_get_async(store, queue.get(), 3, items, 2, 600'000, got) == MC_OK);
  // Until it runs: what waits is given up whole.
  mc_code code = MC_OK;
  mc_done done{};
  while (mc_queue_take(queue.get(), &done, 1) == 0) {
    code = mc_queue_cancel(queue.get(), 3);
    std::this_thread::yield();
  }
  CHECK((code == MC_OK || code == MC_NOT_FOUND));  // not found: done, and not taken yet
  CHECK(done.tag == 3);
  CHECK(done.code == MC_UNAVAILABLE);
  CHECK(got[1].code == MC_UNAVAILABLE);
  CHECK(std::string(b).empty());
  if (got[0].code == MC_OK) CHECK(std::string(a) == "value");
}

TEST_CASE("a get that runs is stopped between two looks for what is not stored") {
  Pool pool;
  mc_store* const store = pool.store();
  REQUIRE(mc_store_put(store, "there", 5, "value", 5) == MC_OK);
  std::array<std::byte, 8> a{}, b{};
  mc_get_result got[2];
  GetCall call(*store, 600s, got);
  call.add(0, {"there", {a}, {}});
  call.add(1, {"never", {b}, {}});
  std::thread stops([&] { call.stop(); });
  const mc_done done = call.run();
  stops.join();
  CHECK(done.code == MC_UNAVAILABLE);
  const bool in_time = got[0].code == MC_OK;  // else it was stopped before the value was there
  CHECK((in_time || got[0].code == MC_UNAVAILABLE));
  CHECK(got[0].bytes == (in_time ? 5 : 0));
  CHECK(done.failed == (in_time ? 1 : 2));
  CHECK(got[1].code == MC_UNAVAILABLE);
}

TEST_CASE("a queue stops the calls that run under a cancelled tag") {
  const SteadyClock clock;
  auto queue = Queue::open(clock, 1, 0);
  REQUIRE(queue);
  std::atomic<bool> begun{false}, stopped{false};
  Queue::Call call;
  call.tag = 5;
  call.turn = [&](Duration) {
    begun = true;
    while (!stopped) std::this_thread::yield();
    return mc_done{0, MC_UNAVAILABLE, 1, 0};
  };
  call.give_up = [](const Error&) -> mc_done { return {}; };
  call.stop = [&] { stopped = true; };
  REQUIRE((*queue)->submit(std::move(call)));
  while (!begun) std::this_thread::yield();
  CHECK(!(*queue)->cancel(4));
  CHECK(!stopped);
  CHECK((*queue)->cancel(5));
  REQUIRE((*queue)->wait(60s));
  mc_done done{};
  CHECK((*queue)->take({&done, 1}) == 1);
  CHECK(done.tag == 5);
  CHECK(done.failed == 1);
}

// Its bytes are held back for ten minutes; the memory is gone once the tag is taken.
TEST_CASE("a put that runs is cancelled: nothing is stored, and its memory is read no more") {
  Pool pool;
  char script[] = "/tmp/mc-fault.XXXXXX";
  const int file = ::mkstemp(script);
  REQUIRE(file >= 0);
  const std::string rule = R"({"op": "write", "delay": "10m"})";
  REQUIRE(::write(file, rule.data(), rule.size()) == static_cast<ssize_t>(rule.size()));
  ::close(file);
  mc_store* const store = pool.open("10m", "slow", nullptr, script);
  ::unlink(script);
  constexpr size_t kBytes = 1 * kMiB;
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::memset(memory, 'v', kBytes);
  OwnQueue queue = open_queue(store, 1);
  const std::string a = "a", b = "b";
  const Item first(a, memory, kBytes / 2), second(b, memory, kBytes);
  const mc_item items[] = {first, second};
  mc_put_result stored[2] = {{99, 0, 0}, {99, 0, 0}};
  REQUIRE(mc_store_put_async(store, queue.get(), 5, items, 2, nullptr, stored) == MC_OK);
  uint64_t room = 64 * kMiB;
  while (room == 64 * kMiB)  // until it has its places
    REQUIRE(mc_store_health(pool.store(), 60'000, nullptr, &room) == MC_OK);
  REQUIRE(mc_queue_cancel(queue.get(), 5) == MC_OK);
  const mc_done done = next(queue);
  REQUIRE(::munmap(memory, kBytes) == 0);
  CHECK(done.tag == 5);
  CHECK(done.code == MC_UNAVAILABLE);
  CHECK(done.failed == 2);
  CHECK(stored[0].code == MC_UNAVAILABLE);
  CHECK(stored[1].code == MC_UNAVAILABLE);
  CHECK(mc_queue_cancel(queue.get(), 5) == MC_NOT_FOUND);
  // The keys are free again, at once.
  CHECK(mc_store_put(pool.store(), "a", 1, "new", 3) == MC_OK);
  int found = 1;
  REQUIRE(mc_store_exists(pool.store(), "b", 1, &found) == MC_OK);
  CHECK(found == 0);
  queue.reset();
  mc_store_close(store);
}

TEST_CASE("closing a queue gives up what waits, and what waits for a value") {
  Pool pool;
  mc_store* const store = pool.store();
  OwnQueue queue = open_queue(store, 1);
  Waiting first(store, queue, "later", 1);
  Waiting second(store, queue, "never", 2);
  queue.reset();
  CHECK(first.result.code == MC_UNAVAILABLE);
  CHECK(second.result.code == MC_UNAVAILABLE);
}

TEST_CASE("drive calls back on the caller's thread for all that is done") {
  Pool pool;
  const OwnQueue queue = open_queue(pool.store(), 2);
  CHECK(mc_queue_drive(
            queue.get(), 1, [](void*, const mc_done*) {}, nullptr) == 0);
  const std::string key = "k";
  const mc_key one = key_of(key);
  std::vector<uint8_t> found(100);
  std::map<uint64_t, std::thread::id> tags;
  for (uint64_t tag = 0; tag < 100; ++tag)
    REQUIRE(mc_store_exists_async(pool.store(), queue.get(), tag, &one, 1, &found[tag]) == MC_OK);
  const auto each = [](void* user, const mc_done* done) {
    (*static_cast<decltype(tags)*>(user))[done->tag] = std::this_thread::get_id();
  };
  size_t all = 0;
  while (all < 100) all += mc_queue_drive(queue.get(), 60'000, each, &tags);
  CHECK(tags.size() == 100);
  for (const auto& [tag, thread] : tags) CHECK(thread == std::this_thread::get_id());
}

TEST_CASE("a batch of transfers is done on a queue when all of it has finished") {
  Pool pool;
  mc_engine* const engine = mc_store_engine(pool.store());
  const OwnQueue queue = open_queue(pool.store());
  mc_memory* memory = nullptr;
  REQUIRE(mc_memory_allocate(engine, 8192, MC_WRITABLE, &memory) == MC_OK);
  std::vector<char> local(8192, 'x');
  mc_request requests[2]{};
  for (size_t i = 0; i < 2; ++i) {
    requests[i].op = MC_WRITE;
    requests[i].local = local.data() + 4096 * i;
    requests[i].offset = mc_memory_offset(memory) + 4096 * i;
    requests[i].bytes = 4096;
  }
  const mc_batch batch = mc_batch_allocate(engine);
  REQUIRE(mc_batch_submit_queue(engine, batch, requests, 2, queue.get(), 5) == MC_OK);
  mc_done done = next(queue);
  CHECK(done.tag == 5);
  CHECK(done.code == MC_OK);
  CHECK(done.failed == 0);
  CHECK(done.bytes == 8192);
  CHECK(std::memcmp(mc_memory_data(memory), local.data(), 8192) == 0);
  // Nothing is submitted, and nothing is done, when a request is wrong.
  requests[1].offset = uint64_t{1} << 40;
  CHECK(mc_batch_submit_queue(engine, batch, requests, 2, queue.get(), 6) == MC_INVALID);
  CHECK(mc_batch_submit_queue(engine, batch, requests, 1, nullptr, 6) == MC_INVALID);
  CHECK(mc_batch_submit_queue(engine, 999, requests, 1, queue.get(), 6) == MC_NOT_FOUND);
  CHECK(mc_queue_take(queue.get(), &done, 1) == 0);
  mc_batch_free(engine, batch);
  mc_memory_free(memory);
}

TEST_CASE("calls on a queue end in time when the master stands still") {
  Pool pool;
  mc_store* const store = pool.open("300ms");
  {
    const OwnQueue queue = open_queue(store, 2);
    pool.stop();
    const std::string key = "k";
    char data[8];
    const Item one(key, data, sizeof data);
    const mc_item item = one;
    mc_get_result got{};
    const mc_key name = key_of(key);
    uint8_t found = 0;
    REQUIRE(mc_store_get_async(store, queue.get(), 1, &item, 1, 100, &got) == MC_OK);
    REQUIRE(mc_store_exists_async(store, queue.get(), 2, &name, 1, &found) == MC_OK);
    for (int i = 0; i < 2; ++i) {
      const mc_done done = next(queue);
      CHECK(done.failed == 1);
      const uint32_t code = done.tag == 1 ? got.code : done.code;
      CHECK((code == MC_TIMEOUT || code == MC_UNAVAILABLE));
    }
  }
  mc_store_close(store);
}

}  // namespace
}  // namespace mc::capi
