#include "capi/mc/store.h"

#include <vector>

#include "capi/common.h"
#include "capi/store_calls.h"
#include "store/client/client.h"

// The C interface of store::Client.

namespace {

using namespace mc;
using namespace mc::store;
using mc::capi::GetCall;
using mc::capi::guarded;
using mc::capi::key_of;
using mc::capi::keys_of;
using mc::capi::need;
using mc::capi::PutCall;
using mc::capi::report;

// A PutItem or GetItem, whose parts are spans of Byte.
template <class Item, class Byte>
Result<Item> item_of(const mc_item& item) {
  if (item.reserved != 0) return fail(Code::kInvalid, "mc_item.reserved is not zero");
  Item out;
  MC_TRY(out.key, key_of(item.key));
  if (item.buffer_count > 0) MC_TRY_(need(item.buffers, "mc_item.buffers"));
  for (size_t b = 0; b < item.buffer_count; ++b) {
    const mc_buffer& buffer = item.buffers[b];
    if (buffer.data == nullptr && buffer.bytes != 0)
      return fail(Code::kInvalid, "a buffer of %zu bytes at NULL", buffer.bytes);
    out.parts.emplace_back(static_cast<Byte*>(buffer.data), buffer.bytes);
  }
  return out;
}

Result<std::shared_ptr<PutCall>> puts_of(mc_store& store, const mc_item* items, size_t count,
                                         const mc_put_options* defaults, mc_put_result* results) {
  if (count > 0) MC_TRY_(need(items, "items"));
  auto call = std::make_shared<PutCall>(store, results);
  for (size_t i = 0; i < count; ++i) {
    const mc_put_options* options = items[i].options == nullptr ? defaults : items[i].options;
    MC_TRY(const size_t group, call->group(options));
    MC_TRY(PutItem item, (item_of<PutItem, const std::byte>(items[i])));
    call->add(group, i, std::move(item));
  }
  return call;
}

Result<std::shared_ptr<GetCall>> gets_of(mc_store& store, const mc_item* items, size_t count,
                                         unsigned wait_ms, mc_get_result* results) {
  if (count > 0) MC_TRY_(need(items, "items"));
  auto call = std::make_shared<GetCall>(store, std::chrono::milliseconds(wait_ms), results);
  for (size_t i = 0; i < count; ++i) {
    if (items[i].options != nullptr)
      return fail(Code::kInvalid, "mc_item.options of a get is not NULL");
    MC_TRY(GetItem item, (item_of<GetItem, std::byte>(items[i])));
    call->add(i, std::move(item));
  }
  return call;
}

}  // namespace

extern "C" {

mc_code mc_store_setup(const char* name, const char* master, const mc_options* options,
                       mc_store** out) {
  return guarded([&]() -> Result<> {
    MC_TRY_(need(master, "master"));
    MC_TRY_(need(out, "out"));
    MC_TRY(auto engine, capi::open_engine(name, options, true));
    ClientOptions client = engine->settings.store;
    if (client.timeout <= Duration::zero())
      return fail(Code::kInvalid, "timeout %s: every call must end, so it must be above 0",
                  to_text(client.timeout).c_str());
    client.master = master;
    // A process of a host without a name prefers the memory that it gives to the pool itself.
    if (client.put.host.empty()) client.put.host = engine->settings.engine.node;
    MC_TRY(auto first, Client::open(*engine->engine, engine->clock, client, engine->metrics));
    *out = std::make_unique<mc_store>(std::move(engine), std::move(client), std::move(first))
               .release();
    return {};
  });
}

void mc_store_close(mc_store* store) { capi::destroy(store); }

mc_code mc_call_with(const mc_call_options* options) {
  return guarded([&]() -> Result<> {
    if (options == nullptr) {
      capi::call_how() = {};
      return {};
    }
    MC_TRY(const mc_call_options o, capi::sized(options, "mc_call_options"));
    capi::call_how() = {std::chrono::milliseconds(o.timeout_ms), o.progress, o.user};
    return {};
  });
}

mc_engine* mc_store_engine(mc_store* store) {
  return store == nullptr ? nullptr : store->engine.get();
}

mc_code mc_store_register_buffer(mc_store* store, void* address, size_t bytes, mc_memory** out) {
  const mc_code code = guarded(store, [&] { return need(address, "address"); });
  if (code != MC_OK) return code;
  return mc_memory_register(mc_store_engine(store), address, bytes, nullptr, 0, out);
}

mc_code mc_store_put(mc_store* store, const char* key, size_t key_bytes, const void* data,
                     size_t bytes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const ObjectKey k, key_of({key, key_bytes}));
    if (bytes > 0) MC_TRY_(need(data, "data"));
    std::atomic<bool> stopped{false};
    MC_TRY(const auto client, store->clients.take(&stopped));
    MC_TRY_(client->put(k, {static_cast<const std::byte*>(data), bytes}));
    return {};
  });
}

mc_code mc_store_get(mc_store* store, const char* key, size_t key_bytes, void* data,
                     size_t capacity, size_t* bytes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const ObjectKey k, key_of({key, key_bytes}));
    if (capacity > 0) MC_TRY_(need(data, "data"));
    std::atomic<bool> stopped{false};
    MC_TRY(const auto client, store->clients.take(&stopped));
    MC_TRY(const uint64_t n, client->get(k, {static_cast<std::byte*>(data), capacity}));
    if (bytes != nullptr) *bytes = n;
    return {};
  });
}

mc_code mc_store_size(mc_store* store, const char* key, size_t key_bytes, size_t* bytes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const ObjectKey k, key_of({key, key_bytes}));
    MC_TRY_(need(bytes, "bytes"));
    MC_TRY(const auto client, store->clients.take());
    MC_TRY(const Located found, client->locate(k));
    *bytes = found.bytes;
    return {};
  });
}

mc_code mc_store_exists(mc_store* store, const char* key, size_t key_bytes, int* found) {
  const mc_key one{key, key_bytes};
  uint8_t there = 0;
  const mc_code code = mc_store_exists_batch(store, &one, 1, &there);
  if (code != MC_OK) return code;
  return guarded([&]() -> Result<> {
    MC_TRY_(need(found, "found"));
    *found = there;
    return {};
  });
}

mc_code mc_store_remove(mc_store* store, const char* key, size_t key_bytes, int force) {
  const mc_key one{key, key_bytes};
  mc_code outcome = MC_OK;
  const mc_code code = mc_store_remove_batch(store, &one, 1, force, &outcome);
  return code == MC_OK ? outcome : code;
}

mc_code mc_store_put_items(mc_store* store, const mc_item* items, size_t count,
                           const mc_put_options* defaults, mc_put_result* results) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto call, puts_of(*store, items, count, defaults, results));
    (void)call->run();
    return {};
  });
}

mc_code mc_store_put_async(mc_store* store, mc_queue* queue, uint64_t tag, const mc_item* items,
                           size_t count, const mc_put_options* defaults, mc_put_result* results) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto call, puts_of(*store, items, count, defaults, results));
    return capi::queue_up(*store, queue, tag, call);
  });
}

mc_code mc_store_get_async(mc_store* store, mc_queue* queue, uint64_t tag, const mc_item* items,
                           size_t count, unsigned wait_ms, mc_get_result* results) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto call, gets_of(*store, items, count, wait_ms, results));
    return capi::queue_up(*store, queue, tag, call);
  });
}

mc_code mc_store_exists_async(mc_store* store, mc_queue* queue, uint64_t tag, const mc_key* keys,
                              size_t count, uint8_t* found) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto all, keys_of(keys, count));
    if (count > 0) MC_TRY_(need(found, "found"));
    return capi::queue_up(*store, queue, tag,
                          std::make_shared<capi::ExistsCall>(*store, std::move(all), found));
  });
}

mc_code mc_store_put_batch(mc_store* store, const mc_item* items, size_t count, mc_code* codes) {
  return guarded(store, [&]() -> Result<> {
    if (count > 0) MC_TRY_(need(codes, "codes"));
    std::vector<mc_put_result> results(count);
    MC_TRY(const auto call, puts_of(*store, items, count, nullptr, results.data()));
    (void)call->run();
    for (size_t i = 0; i < count; ++i) codes[i] = static_cast<mc_code>(results[i].code);
    return {};
  });
}

mc_code mc_store_get_batch(mc_store* store, const mc_item* items, size_t count, unsigned wait_ms,
                           size_t* bytes, mc_code* codes) {
  return guarded(store, [&]() -> Result<> {
    if (count > 0) MC_TRY_(need(codes, "codes"));
    std::vector<mc_get_result> results(count);
    MC_TRY(const auto call, gets_of(*store, items, count, wait_ms, results.data()));
    (void)call->run();
    for (size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<mc_code>(results[i].code);
      if (bytes != nullptr) bytes[i] = results[i].bytes;
    }
    return {};
  });
}

mc_code mc_store_exists_batch(mc_store* store, const mc_key* keys, size_t count, uint8_t* found) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto all, keys_of(keys, count));
    if (count > 0) MC_TRY_(need(found, "found"));
    return capi::ExistsCall(*store, std::move(all), found).ask();
  });
}

mc_code mc_store_match_prefix(mc_store* store, const mc_key* keys, size_t count, size_t* matched) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys, count));
    MC_TRY(const auto client, store->clients.take());
    MC_TRY_(need(matched, "matched"));
    MC_TRY(*matched, client->match_prefix(all));
    return {};
  });
}

mc_code mc_store_remove_batch(mc_store* store, const mc_key* keys, size_t count, int force,
                              mc_code* codes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys, count));
    if (count > 0) MC_TRY_(need(codes, "codes"));
    return capi::remove_all(*store, all, force != 0, codes);
  });
}

}  // extern "C"
