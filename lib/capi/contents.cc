// What the store holds, and where.
#include <algorithm>
#include <utility>
#include <vector>

#include "capi/common.h"
#include "capi/mc/store.h"
#include "capi/store_calls.h"

namespace {

using namespace mc;
using mc::capi::guarded;

constexpr uint32_t kPageKeys = 1000;

Result<std::string> prefix_of(const char* prefix, size_t bytes) {
  if (prefix == nullptr && bytes != 0)
    return fail(Code::kInvalid, "a prefix of %zu bytes at NULL", bytes);
  return prefix == nullptr ? std::string() : std::string(prefix, bytes);
}

// Holds no client while the caller's function runs.
Result<store::Listed> page_of(mc_store& from, const std::string& prefix, const std::string& after) {
  MC_TRY(const auto client, from.clients.take());
  return client->list(prefix, after, kPageKeys);
}

}  // namespace

extern "C" {

mc_code mc_store_list(mc_store* store, const char* prefix, size_t prefix_bytes, mc_each each,
                      void* user) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const std::string wanted, prefix_of(prefix, prefix_bytes));
    std::string after;
    for (;;) {
      MC_TRY(const store::Listed page, page_of(*store, wanted, after));
      for (const store::ObjectInfo& object : page.items)
        if (each(user, object.key.data(), object.key.size(), object.bytes) != 0) return {};
      if (!page.more || page.items.empty()) return {};
      after = page.items.back().key;
    }
  });
}

mc_code mc_store_remove_prefix(mc_store* store, const char* prefix, size_t prefix_bytes, int force,
                               uint64_t* removed) {
  return guarded(store, [&]() -> Result<> {
    store::RemovePrefix question;
    MC_TRY(question.prefix, prefix_of(prefix, prefix_bytes));
    question.force = force != 0;
    question.tenant = store->options.tenant;
    MC_TRY(const auto client, store->clients.take());
    uint64_t refused = 0;
    std::string why;
    if (removed != nullptr) *removed = 0;
    for (bool more = true; more;) {
      MC_TRY(const store::RemovePrefixed part, client->call(question));
      if (removed != nullptr) *removed += part.removed;
      if (refused == 0) why = part.why;
      refused += part.refused;
      question.after = part.last;
      more = part.more;
    }
    if (refused == 0) return {};
    return fail(Code::kBusy, "%llu not removed; the first: %s",
                static_cast<unsigned long long>(refused), why.c_str());
  });
}

mc_code mc_store_locate(mc_store* store, mc_key key, mc_place* places, size_t capacity,
                        size_t* count) {
  return guarded(store, [&]() -> Result<> {
    if (capacity > 0 && places[0].size != sizeof(mc_place))
      return fail(Code::kInvalid, "mc_place.size is %u: want %zu", places[0].size,
                  sizeof(mc_place));
    MC_TRY(const ObjectKey name, capi::key_of(key));
    MC_TRY(const auto client, store->clients.take());
    std::vector<store::NodeRef> nodes;
    MC_TRY(const store::Located at, client->locate(name, &nodes));
    size_t n = 0;
    const auto add = [&](uint32_t node, uint32_t tier) {
      if (node >= nodes.size()) return;
      if (n++ >= capacity) return;
      mc_place& place = places[n - 1];
      place = {sizeof(mc_place), tier, {}, at.bytes};
      const std::string& text = nodes[node].name;
      std::copy_n(text.data(), std::min(text.size(), sizeof place.node - 1), place.node);
    };
    for (const store::ReplicaLocation& place : at.places) add(place.node, MC_TIER_MEMORY);
    for (const uint32_t node : at.disks) add(node, MC_TIER_DISK);
    *count = n;
    return {};
  });
}

mc_code mc_store_health(mc_store* store, unsigned timeout_ms, uint32_t* nodes,
                        uint64_t* free_bytes) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto client, store->clients.take());
    MC_TRY(const store::ClusterStat stat, client->stat(std::chrono::milliseconds(timeout_ms)));
    uint32_t ready = 0;
    uint64_t room = 0;
    for (const store::NodeStat& node : stat.nodes) {
      if (node.state != "ready") continue;
      ++ready;
      room += node.capacity - std::min(node.capacity, node.used + node.releasing);
    }
    if (nodes != nullptr) *nodes = ready;
    if (free_bytes != nullptr) *free_bytes = room;
    return {};
  });
}

mc_code mc_store_prefetch(mc_store* store, const mc_key* keys, size_t count, uint64_t* asked) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const auto all, capi::keys_of(keys, count));
    MC_TRY(const auto client, store->clients.take());
    MC_TRY(*asked, client->prefetch(all));
    return {};
  });
}

}  // extern "C"
