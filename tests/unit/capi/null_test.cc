// NULL where the C interface wants something: a code, and no crash.
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {

TEST_CASE("a NULL object is refused by every call on it") {
  size_t n = 0;
  uint64_t bytes = 0;
  int found = 0;
  mc_segment segment = 0;
  mc_memory* memory = nullptr;
  mc_queue* queue = nullptr;
  mc_status status{};
  mc_done done{};
  const mc_request request{};
  char value[8] = {};
  const auto refused = [](mc_code code) {
    return code == MC_INVALID && error_text().find("is NULL") != std::string::npos;
  };
  CHECK(refused(mc_memory_allocate(nullptr, 4096, 0, &memory)));
  CHECK(refused(mc_memory_register(nullptr, value, 8, nullptr, 0, &memory)));
  CHECK(refused(mc_memory_allocate_at(nullptr, 4096, "cpu", 0, &memory)));
  CHECK(refused(mc_memory_register_file(nullptr, "file", 0, 0, &memory)));
  CHECK(refused(mc_memory_kind(nullptr, value, value)));
  CHECK(mc_devices(nullptr, nullptr, 0) == 0);
  CHECK(refused(mc_segment_open(nullptr, "127.0.0.1:1", 1, &segment)));
  CHECK(refused(mc_segment_bytes(nullptr, 0, &bytes)));
  CHECK(refused(mc_transfer(nullptr, &request, 1)));
  CHECK(mc_batch_allocate(nullptr) == 0);
  CHECK(refused(mc_batch_submit(nullptr, 1, &request, 1)));
  CHECK(refused(mc_batch_status(nullptr, 1, 0, &status)));
  CHECK(refused(mc_batch_wait(nullptr, 1, 1)));
  mc_batch_cancel(nullptr, 1);
  mc_batch_free(nullptr, 1);
  mc_segment_close(nullptr, 1);
  mc_prepared* prepared = nullptr;
  CHECK(refused(mc_prepared_new(nullptr, &request, 1, &prepared)));
  CHECK(refused(mc_prepared_run(nullptr, 1)));
  CHECK(refused(mc_prepared_submit(nullptr, 1, 1, nullptr, 0)));
  CHECK(refused(mc_queue_open(nullptr, 0, 0, &queue)));
  CHECK(refused(mc_queue_wait(nullptr, 0)));
  CHECK(refused(mc_queue_cancel(nullptr, 1)));
  CHECK(mc_queue_take(nullptr, &done, 1) == 0);
  CHECK(mc_queue_fd(nullptr) == -1);
  CHECK(mc_memory_data(nullptr) == nullptr);
  CHECK(mc_memory_bytes(nullptr) == 0);
  CHECK(mc_store_engine(nullptr) == nullptr);
  CHECK(std::string(mc_engine_address(nullptr)).empty());
  CHECK(refused(mc_store_put(nullptr, "k", 1, value, 1)));
  CHECK(refused(mc_store_get(nullptr, "k", 1, value, 1, nullptr)));
  CHECK(refused(mc_store_size(nullptr, "k", 1, &n)));
  CHECK(refused(mc_store_exists(nullptr, "k", 1, &found)));
  CHECK(refused(mc_store_remove(nullptr, "k", 1, 0)));
  CHECK(refused(mc_store_register_buffer(nullptr, value, 8, &memory)));
  CHECK(refused(mc_store_health(nullptr, 1, nullptr, nullptr)));
}

TEST_CASE("a NULL place or list is refused") {
  Pool pool;
  mc_store* const store = pool.store();
  mc_engine* const engine = mc_store_engine(store);
  char at[32];
  CHECK(mc_memory_kind(engine, nullptr, at) == MC_INVALID);
  CHECK(mc_memory_kind(engine, at, nullptr) == MC_INVALID);
  CHECK(mc_memory_allocate_at(engine, 4096, "cpu", 0, nullptr) == MC_INVALID);
  CHECK(mc_devices(engine, nullptr, 1) == 0);
  const mc_key key{"k", 1};
  const mc_item item{key, nullptr, 1, nullptr, 0};
  const uint32_t end = 1;
  const mc_keys flat{"k", &end, 1};
  const uint8_t hash[32] = {};
  char value[8] = {};
  uint8_t there = 0;
  mc_put_result result{};
  mc_store* other = nullptr;
  mc_engine* opened = nullptr;
  mc_kv_layout* layout = nullptr;
  const mc_kv_region region{sizeof region, 1, value, 8, 8, 0};
  const auto refused = [](mc_code code) {
    return code == MC_INVALID && error_text().find("NULL") != std::string::npos;
  };
  CHECK(refused(mc_options_new(nullptr)));
  CHECK(refused(mc_options_set(nullptr, "timeout", "1s")));
  CHECK(refused(mc_engine_open(nullptr, nullptr, &opened)));
  CHECK(refused(mc_engine_open("e", nullptr, nullptr)));
  CHECK(refused(mc_store_setup(nullptr, pool.address().c_str(), nullptr, &other)));
  CHECK(refused(mc_store_setup("s", nullptr, nullptr, &other)));
  CHECK(refused(mc_store_setup("s", pool.address().c_str(), nullptr, nullptr)));
  CHECK(refused(mc_memory_allocate(engine, 4096, 0, nullptr)));
  mc_memory* memory = nullptr;
  CHECK(refused(mc_store_register_buffer(store, nullptr, 10, &memory)));
  CHECK(refused(mc_segment_open(engine, nullptr, 1, nullptr)));
  CHECK(refused(mc_transfer(engine, nullptr, 1)));
  CHECK(refused(mc_batch_submit(engine, mc_batch_allocate(engine), nullptr, 1)));
  mc_prepared* prepared = nullptr;
  CHECK(refused(mc_prepared_new(engine, nullptr, 1, &prepared)));
  CHECK(refused(mc_prepared_new(engine, nullptr, 0, nullptr)));
  CHECK(refused(mc_store_put(store, nullptr, 1, value, 1)));
  CHECK(refused(mc_store_put(store, "k", 1, nullptr, 1)));
  CHECK(refused(mc_store_get(store, "k", 1, nullptr, 1, nullptr)));
  CHECK(refused(mc_store_size(store, "k", 1, nullptr)));
  CHECK(refused(mc_store_exists(store, "k", 1, nullptr)));
  CHECK(refused(mc_store_exists_batch(store, &key, 1, nullptr)));
  CHECK(refused(mc_store_exists_batch(store, nullptr, 1, &there)));
  CHECK(refused(mc_store_match_prefix(store, &key, 1, nullptr)));
  CHECK(refused(mc_store_match_blocks(store, &key, 1, hash, 32, 1, nullptr)));
  CHECK(refused(mc_store_remove_batch(store, &key, 1, 0, nullptr)));
  CHECK(refused(mc_store_put_items(store, nullptr, 1, nullptr, &result)));
  CHECK(refused(mc_store_put_items(store, &item, 1, nullptr, &result)));
  CHECK(refused(mc_store_put_batch(store, &item, 1, nullptr)));
  CHECK(refused(mc_store_exists_keys(store, nullptr, nullptr, 0, &there)));
  CHECK(refused(mc_store_exists_keys(store, &flat, nullptr, 0, nullptr)));
  CHECK(refused(mc_store_put_keys(store, &flat, nullptr, nullptr, nullptr, 0, nullptr, &result)));
  CHECK(refused(mc_store_list(store, nullptr, 0, nullptr, nullptr)));
  CHECK(refused(mc_store_locate(store, key, nullptr, 0, nullptr)));
  CHECK(refused(mc_store_lend(store, nullptr, nullptr)));
  CHECK(refused(mc_kv_layout_new(store, &region, 1, 1, nullptr)));
  CHECK(refused(mc_store_put_blocks(store, nullptr, nullptr, nullptr, 0, nullptr, nullptr)));
  REQUIRE(mc_kv_layout_new(store, &region, 1, 1, &layout) == MC_OK);
  CHECK(refused(mc_store_put_blocks(store, layout, nullptr, nullptr, 0, nullptr, nullptr)));
  mc_kv_layout_free(layout);
  size_t n = 0;
  CHECK(mc_store_match_blocks(store, &key, 1, hash, 32, SIZE_MAX / 2, &n) == MC_INVALID);
}

}  // namespace
}  // namespace mc::capi
