#include "capi/mc/store.h"

#include <vector>

#include "capi/common.h"
#include "store/client/client.h"

// The C interface of store::Client.

struct mc_store {
  std::unique_ptr<mc_engine> engine;
  std::unique_ptr<mc::store::Client> client;
};

namespace {

using namespace mc;
using namespace mc::store;
using mc::capi::guarded;
using mc::capi::report;

// The master checks keys. Here only the pointer is checked.
Result<ObjectKey> key_of(const mc_key& key) {
  if (key.data == nullptr && key.bytes != 0)
    return fail(Code::kInvalid, "mc_key.data is NULL and mc_key.bytes is %zu", key.bytes);
  return ObjectKey(key.data, key.bytes);
}

Result<std::vector<ObjectKey>> keys_of(const mc_key* keys, size_t count) {
  std::vector<ObjectKey> out;
  out.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    MC_TRY(ObjectKey key, key_of(keys[i]));
    out.push_back(std::move(key));
  }
  return out;
}

// PutItem or GetItem, whose parts are spans of Byte.
template <class Item, class Byte>
Result<std::vector<Item>> items_of(const mc_item* items, size_t count) {
  std::vector<Item> out(count);
  for (size_t i = 0; i < count; ++i) {
    for (uint64_t word : items[i].reserved)
      if (word != 0) return fail(Code::kInvalid, "mc_item.reserved is not zero");
    MC_TRY(out[i].key, key_of(items[i].key));
    for (size_t b = 0; b < items[i].buffer_count; ++b) {
      const mc_buffer& buffer = items[i].buffers[b];
      if (buffer.data == nullptr && buffer.bytes != 0)
        return fail(Code::kInvalid, "a buffer of %zu bytes at NULL", buffer.bytes);
      out[i].parts.emplace_back(static_cast<Byte*>(buffer.data), buffer.bytes);
    }
  }
  return out;
}

// Reports one item; mc_last_error() has the text of the last that failed.
template <class R>
mc_code code_of(const R& outcome) {
  return outcome ? MC_OK : report(outcome.error());
}

}  // namespace

extern "C" {

mc_code mc_store_setup(const char* name, const char* master, const mc_options* options,
                       mc_store** out) {
  return guarded([&]() -> Result<> {
    auto s = std::make_unique<mc_store>();
    MC_TRY(s->engine, capi::open_engine(name, options));
    ClientOptions client = s->engine->settings.store;
    client.master = master;
    MC_TRY(s->client, Client::open(*s->engine->engine, s->engine->clock, std::move(client),
                                   s->engine->metrics));
    *out = s.release();
    return {};
  });
}

void mc_store_close(mc_store* store) { std::unique_ptr<mc_store> owner(store); }
mc_engine* mc_store_engine(mc_store* store) { return store->engine.get(); }

mc_code mc_store_register_buffer(mc_store* store, void* address, size_t bytes, mc_memory** out) {
  return mc_memory_register(store->engine.get(), address, bytes, nullptr, 0, out);
}

mc_code mc_store_put(mc_store* store, const char* key, size_t key_bytes, const void* data,
                     size_t bytes) {
  return guarded([&]() -> Result<> {
    MC_TRY(const ObjectKey k, key_of({key, key_bytes}));
    MC_TRY_(store->client->put(k, {static_cast<const std::byte*>(data), bytes}));
    return {};
  });
}

mc_code mc_store_get(mc_store* store, const char* key, size_t key_bytes, void* data,
                     size_t capacity, size_t* bytes) {
  return guarded([&]() -> Result<> {
    MC_TRY(const ObjectKey k, key_of({key, key_bytes}));
    MC_TRY(const uint64_t n, store->client->get(k, {static_cast<std::byte*>(data), capacity}));
    if (bytes != nullptr) *bytes = n;
    return {};
  });
}

mc_code mc_store_size(mc_store* store, const char* key, size_t key_bytes, size_t* bytes) {
  return guarded([&]() -> Result<> {
    MC_TRY(const ObjectKey k, key_of({key, key_bytes}));
    MC_TRY(const Located found, store->client->locate(k));
    *bytes = found.bytes;
    return {};
  });
}

mc_code mc_store_exists(mc_store* store, const char* key, size_t key_bytes, int* found) {
  const mc_key one{key, key_bytes};
  uint8_t there = 0;
  const mc_code code = mc_store_exists_batch(store, &one, 1, &there);
  if (code == MC_OK) *found = there;
  return code;
}

mc_code mc_store_remove(mc_store* store, const char* key, size_t key_bytes, int force) {
  const mc_key one{key, key_bytes};
  mc_code outcome = MC_OK;
  const mc_code code = mc_store_remove_batch(store, &one, 1, force, &outcome);
  return code == MC_OK ? outcome : code;
}

mc_code mc_store_put_batch(mc_store* store, const mc_item* items, size_t count, mc_code* codes) {
  return guarded([&]() -> Result<> {
    MC_TRY(const auto all, (items_of<PutItem, const std::byte>(items, count)));
    const auto outcomes = store->client->put_batch(all);
    for (size_t i = 0; i < count; ++i) codes[i] = code_of(outcomes[i]);
    return {};
  });
}

mc_code mc_store_get_batch(mc_store* store, const mc_item* items, size_t count, unsigned wait_ms,
                           size_t* bytes, mc_code* codes) {
  return guarded([&]() -> Result<> {
    MC_TRY(const auto all, (items_of<GetItem, std::byte>(items, count)));
    const auto outcomes = store->client->get_batch(all, std::chrono::milliseconds(wait_ms));
    for (size_t i = 0; i < count; ++i) {
      codes[i] = code_of(outcomes[i]);
      if (bytes != nullptr) bytes[i] = outcomes[i].value_or(0);
    }
    return {};
  });
}

mc_code mc_store_exists_batch(mc_store* store, const mc_key* keys, size_t count, uint8_t* found) {
  return guarded([&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys, count));
    MC_TRY(const auto there, store->client->exists(all));
    for (size_t i = 0; i < count; ++i) found[i] = there[i] ? 1 : 0;
    return {};
  });
}

mc_code mc_store_match_prefix(mc_store* store, const mc_key* keys, size_t count, size_t* matched) {
  return guarded([&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys, count));
    MC_TRY(*matched, store->client->match_prefix(all));
    return {};
  });
}

mc_code mc_store_remove_batch(mc_store* store, const mc_key* keys, size_t count, int force,
                              mc_code* codes) {
  return guarded([&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys, count));
    const auto outcomes = store->client->remove(all, force != 0);
    for (size_t i = 0; i < count; ++i) codes[i] = code_of(outcomes[i]);
    return {};
  });
}

}  // extern "C"
