// Objects of the C interface in a child of a fork.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

// Runs `work` in a child. Returns: the number of the first of its checks that failed, 0: none.
int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(work());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST_CASE(
    "in a child of a fork calls on the parent's objects are refused, and closing them does "
    "nothing") {
  Pool pool;
  mc_store* const store = pool.store();
  mc_engine* const engine = mc_store_engine(store);
  OwnQueue queue = open_queue(store);
  std::vector<char> cache(4096);
  const mc_kv_region region{sizeof region, 1, cache.data(), 1024, 1024, 0};
  mc_kv_layout* layout = nullptr;
  REQUIRE(mc_kv_layout_new(store, &region, 1, 4, &layout) == MC_OK);
  mc_memory* memory = nullptr;
  REQUIRE(mc_memory_allocate(engine, 4096, 0, &memory) == MC_OK);
  const mc_batch batch = mc_batch_allocate(engine);
  mc_prepared* prepared = nullptr;
  REQUIRE(mc_prepared_new(engine, nullptr, 0, &prepared) == MC_OK);
  REQUIRE(mc_store_put(store, "k", 1, "value", 5) == MC_OK);

  CHECK(in_child([&] {
          int check = 0;
          char back[8];
          int found = 0;
          size_t n = 0;
          uint64_t bytes = 0;
          uint8_t hash[32] = {};
          uint32_t number = 0;
          const mc_key key{"k", 1};
          mc_kv_blocks blocks{};
          blocks.size = sizeof blocks;
          blocks.hash_bytes = 32;
          blocks.hashes = hash;
          blocks.blocks = &number;
          blocks.count = 1;
          mc_done done{};
          const auto refused = [&](mc_code code) {
            ++check;
            return code == MC_UNSUPPORTED && error_text() == "not after fork: open it in the child";
          };
          if (!refused(mc_store_get(store, "k", 1, back, sizeof back, nullptr))) return check;
          if (!refused(mc_store_put(store, "l", 1, "v", 1))) return check;
          if (!refused(mc_store_exists(store, "k", 1, &found))) return check;
          if (!refused(mc_store_remove(store, "k", 1, 1))) return check;
          if (!refused(mc_store_match_prefix(store, &key, 1, &n))) return check;
          if (!refused(mc_store_match_blocks(store, &key, 1, hash, 32, 1, &n))) return check;
          if (!refused(mc_store_match_blocks_within(store, &key, 1, hash, 32, 1, 9, &n)))
            return check;
          if (!refused(mc_store_put_blocks(store, layout, &blocks, nullptr, 0, nullptr, nullptr)))
            return check;
          if (!refused(mc_store_exists_async(store, queue.get(), 1, &key, 1, hash))) return check;
          const uint32_t end = 1;
          const mc_keys flat{"k", &end, 1};
          mc_code removed = MC_OK;
          uint32_t nodes = 0;
          mc_queue* const q = queue.get();
          if (!refused(mc_store_size_async(store, q, 1, key, &bytes))) return check;
          if (!refused(mc_store_match_async(store, q, 1, &flat, &n))) return check;
          if (!refused(mc_store_remove_async(store, q, 1, &flat, 0, &removed))) return check;
          if (!refused(mc_store_health_async(store, q, 1, 9, &nodes, &bytes))) return check;
          if (!refused(mc_store_match_blocks_async(store, q, 1, &key, 1, hash, 32, 1, &n)))
            return check;
          mc_piece piece{back, 0, 1, 1, 0, 0};
          const mc_range_item range{key, &piece, 1};
          mc_lend_options how{};
          how.size = sizeof how;
          how.bytes = 8192;
          mc_lent* given = nullptr;
          mc_kv_layout* other = nullptr;
          const mc_each each = [](void*, const char*, size_t, uint64_t) { return 0; };
          if (!refused(mc_store_get_ranges(store, &range, 1, 0, nullptr))) return check;
          if (!refused(mc_store_put_items(store, nullptr, 0, nullptr, nullptr))) return check;
          if (!refused(mc_store_list(store, "k", 1, each, nullptr))) return check;
          if (!refused(mc_store_remove_prefix(store, "k", 1, 0, &bytes))) return check;
          if (!refused(mc_store_locate(store, key, nullptr, 0, &n))) return check;
          if (!refused(mc_store_health(store, 9, &nodes, &bytes))) return check;
          if (!refused(mc_store_prefetch(store, &key, 1, &bytes))) return check;
          if (!refused(mc_store_lend(store, &how, &given))) return check;
          if (!refused(mc_kv_layout_new(store, &region, 1, 4, &other))) return check;
          if (!refused(mc_notify(engine, 0, "n", nullptr, 0, 9))) return check;
          if (!refused(mc_segment_offset(engine, 0, 1, 1, &bytes))) return check;
          if (!refused(mc_queue_wait(queue.get(), 0))) return check;
          if (!refused(mc_queue_cancel(queue.get(), 1))) return check;
          if (!refused(mc_segment_bytes(engine, 0, &bytes))) return check;
          if (!refused(mc_batch_wait(engine, batch, 0))) return check;
          if (!refused(mc_prepared_run(prepared, 9))) return check;
          ++check;
          if (mc_queue_take(queue.get(), &done, 1) != 0 || mc_batch_allocate(engine) != 0)
            return check;
          mc_batch_free(engine, batch);
          mc_prepared_free(prepared);
          mc_memory_free(memory);
          mc_kv_layout_free(layout);
          mc_queue_close(queue.release());
          mc_store_close(store);
          return 0;
        }) == 0);

  // The parent's are as they were.
  char back[8];
  CHECK(mc_store_get(store, "k", 1, back, sizeof back, nullptr) == MC_OK);
  mc_batch_free(engine, batch);
  mc_prepared_free(prepared);
  mc_memory_free(memory);
  mc_kv_layout_free(layout);
}

TEST_CASE("a child of a fork opens a store of its own, while other threads of the parent work on") {
  // In a child of a process with threads the thread sanitizer has no threads, and the address
  // sanitizer's allocator keeps a lock that another thread held.
  if (kSlow > 1) return;
  Pool pool;
  mc_store* const store = pool.store();
  REQUIRE(mc_store_put(store, "k", 1, "value", 5) == MC_OK);
  std::atomic<bool> over{false};
  std::thread busy([&] {
    char back[8];
    while (!over) (void)mc_store_get(store, "k", 1, back, sizeof back, nullptr);
  });
  for (int i = 0; i < 3; ++i)
    CHECK(in_child([&] {
            mc_store* own = nullptr;
            if (mc_store_setup("child", pool.address().c_str(), nullptr, &own) != MC_OK) return 1;
            char back[8] = {};
            if (mc_store_get(own, "k", 1, back, sizeof back, nullptr) != MC_OK) return 2;
            if (std::string(back) != "value") return 3;
            mc_store_close(own);
            return 0;
          }) == 0);
  over = true;
  busy.join();
}

}  // namespace
}  // namespace mc::capi
