// Keys in flat form.
#include <algorithm>
#include <utility>
#include <vector>

#include "capi/common.h"
#include "capi/mc/store.h"
#include "capi/store_calls.h"

namespace {

using namespace mc;
using mc::capi::guarded;
using mc::capi::need;

Result<std::vector<ObjectKey>> keys_of(const mc_keys* keys) {
  MC_TRY_(need(keys, "keys"));
  if (keys->count > 0 && (keys->bytes == nullptr || keys->ends == nullptr))
    return fail(Code::kInvalid, "mc_keys: %zu keys, and bytes or ends is NULL", keys->count);
  std::vector<ObjectKey> out;
  out.reserve(keys->count);
  uint32_t at = 0;
  for (size_t i = 0; i < keys->count; ++i) {
    const uint32_t end = keys->ends[i];
    if (end < at)
      return fail(Code::kInvalid, "mc_keys.ends[%zu] is %u, before the key's begin at %u", i, end,
                  at);
    out.emplace_back(keys->bytes + at, end - at);
    at = end;
  }
  return out;
}

// The buffers of item i. `at`: where the last one's ended.
template <class Byte>
Result<std::vector<std::span<Byte>>> parts_of(const mc_buffer* buffers, const uint32_t* ends,
                                              size_t i, size_t& at) {
  const size_t end = ends == nullptr ? i + 1 : ends[i];
  if (end < at)
    return fail(Code::kInvalid, "buffer_ends[%zu] is %zu, before its begin at %zu", i, end, at);
  std::vector<std::span<Byte>> out;
  out.reserve(end - at);
  if (at < end) MC_TRY_(need(buffers, "buffers"));
  for (; at < end; ++at) {
    if (buffers[at].data == nullptr && buffers[at].bytes != 0)
      return fail(Code::kInvalid, "a buffer of %zu bytes at NULL", buffers[at].bytes);
    out.emplace_back(static_cast<Byte*>(buffers[at].data), buffers[at].bytes);
  }
  return out;
}

}  // namespace

extern "C" {

mc_code mc_store_put_keys(mc_store* store, const mc_keys* keys, const mc_buffer* buffers,
                          const uint32_t* buffer_ends, mc_queue* queue, uint64_t tag,
                          const mc_put_options* options, mc_put_result* results) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto all, keys_of(keys));
    auto call = std::make_shared<capi::PutCall>(*store, results);
    MC_TRY(const size_t group, call->group(options));
    size_t at = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      MC_TRY(auto parts, parts_of<const std::byte>(buffers, buffer_ends, i, at));
      call->add(group, i, {std::move(all[i]), std::move(parts)});
    }
    return capi::carry_out(*store, queue, tag, call);
  });
}

mc_code mc_store_get_keys(mc_store* store, const mc_keys* keys, const mc_buffer* buffers,
                          const uint32_t* buffer_ends, mc_queue* queue, uint64_t tag,
                          unsigned wait_ms, mc_get_result* results) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto all, keys_of(keys));
    auto call =
        std::make_shared<capi::GetCall>(*store, std::chrono::milliseconds(wait_ms), results);
    size_t at = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      MC_TRY(auto parts, parts_of<std::byte>(buffers, buffer_ends, i, at));
      call->add(i, {std::move(all[i]), std::move(parts)});
    }
    return capi::carry_out(*store, queue, tag, call);
  });
}

mc_code mc_store_exists_keys(mc_store* store, const mc_keys* keys, mc_queue* queue, uint64_t tag,
                             uint8_t* found) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto all, keys_of(keys));
    if (!all.empty()) MC_TRY_(need(found, "found"));
    const auto call = std::make_shared<capi::ExistsCall>(*store, std::move(all), found);
    if (queue != nullptr) return capi::queue_up(*store, queue, tag, call);
    return call->ask();
  });
}

mc_code mc_store_match_keys(mc_store* store, const mc_keys* keys, size_t* matched) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys));
    MC_TRY_(need(matched, "matched"));
    MC_TRY(const auto client, store->clients.take());
    MC_TRY(*matched, client->match_prefix(all));
    return {};
  });
}

mc_code mc_store_remove_keys(mc_store* store, const mc_keys* keys, int force, mc_code* codes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys));
    if (!all.empty()) MC_TRY_(need(codes, "codes"));
    MC_TRY_(capi::remove_all(*store, all, force != 0, codes));
    return {};
  });
}

mc_code mc_store_prefetch_keys(mc_store* store, const mc_keys* keys, uint64_t* asked) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto all, keys_of(keys));
    MC_TRY_(need(asked, "asked"));
    MC_TRY(const auto client, store->clients.take());
    MC_TRY(*asked, client->prefetch(all));
    return {};
  });
}

mc_code mc_store_size_async(mc_store* store, mc_queue* queue, uint64_t tag, mc_key key,
                            uint64_t* bytes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const ObjectKey name, capi::key_of(key));
    MC_TRY_(need(bytes, "bytes"));
    const auto ask = [store, name, bytes]() -> Result<uint32_t> {
      MC_TRY(const auto client, store->clients.take());
      MC_TRY(const store::Located found, client->locate(name));
      *bytes = found.bytes;
      return 0;
    };
    return capi::queue_up(*store, queue, tag, std::make_shared<capi::AskCall>(ask));
  });
}

mc_code mc_store_match_async(mc_store* store, mc_queue* queue, uint64_t tag, const mc_keys* keys,
                             size_t* matched) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto all, keys_of(keys));
    MC_TRY_(need(matched, "matched"));
    const auto ask = [store, all = std::move(all), matched]() -> Result<uint32_t> {
      MC_TRY(const auto client, store->clients.take());
      MC_TRY(*matched, client->match_prefix(all));
      return 0;
    };
    return capi::queue_up(*store, queue, tag, std::make_shared<capi::AskCall>(ask));
  });
}

mc_code mc_store_remove_async(mc_store* store, mc_queue* queue, uint64_t tag, const mc_keys* keys,
                              int force, mc_code* codes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(auto all, keys_of(keys));
    if (!all.empty()) MC_TRY_(need(codes, "codes"));
    const auto ask = [store, all = std::move(all), force, codes]() -> Result<uint32_t> {
      MC_TRY_(capi::remove_all(*store, all, force != 0, codes));
      return static_cast<uint32_t>(std::count_if(codes, codes + all.size(), [](mc_code code) {
        return code != MC_OK && code != MC_NOT_FOUND;
      }));
    };
    return capi::queue_up(*store, queue, tag, std::make_shared<capi::AskCall>(ask));
  });
}

mc_code mc_store_health_async(mc_store* store, mc_queue* queue, uint64_t tag, unsigned timeout_ms,
                              uint32_t* nodes, uint64_t* free_bytes) {
  return guarded(store, [&]() -> Result<> {
    const Duration limit = std::chrono::milliseconds(std::max(timeout_ms, 1u));
    const auto ask = [store, nodes, free_bytes]() -> Result<uint32_t> {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(capi::call_how().timeout);
      const mc_code code =
          mc_store_health(store, static_cast<unsigned>(left.count()), nodes, free_bytes);
      if (code != MC_OK) return fail(Error{static_cast<Code>(code), mc_last_error()});
      return 0;
    };
    return capi::queue_up(*store, queue, tag, std::make_shared<capi::AskCall>(ask), limit);
  });
}

}  // extern "C"
