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

// A question to the master in parts, which may stop in between.
class PagedCall : public capi::StoreCall {
 public:
  mc_done run() override {
    const Result<> done = all();
    return done ? mc_done{} : give_up(done.error());
  }
  mc_done give_up(const Error& why) override {
    return {0, static_cast<uint32_t>(capi::report(why)), 1, 0};
  }
  Result<> all() {
    for (bool more = true; more;) {
      if (stopped_) return fail(Code::kUnavailable, "cancelled");
      MC_TRY(more, page());
    }
    return end();
  }

 private:
  virtual Result<bool> page() = 0;  // whether there is more
  virtual Result<> end() { return {}; }
};

class Listing : public PagedCall {
 public:
  Listing(mc_store& store, std::string prefix, mc_each each, void* user)
      : store_(store), prefix_(std::move(prefix)), each_(each), user_(user) {}

 private:
  // Holds no client while the caller's function runs.
  Result<store::Listed> next() {
    MC_TRY(const auto client, store_.clients.take());
    return client->list(prefix_, after_, kPageKeys);
  }
  Result<bool> page() override {
    MC_TRY(const store::Listed page, next());
    for (const store::ObjectInfo& object : page.items)
      if (each_(user_, object.key.data(), object.key.size(), object.bytes) != 0) return false;
    if (!page.more || page.items.empty()) return false;
    after_ = page.items.back().key;
    return true;
  }
  mc_store& store_;
  const std::string prefix_;
  const mc_each each_;
  void* const user_;
  std::string after_;
};

class Removal : public PagedCall {
 public:
  Removal(mc_store& store, std::string prefix, bool force, uint64_t* removed)
      : store_(store), removed_(removed) {
    question_.prefix = std::move(prefix);
    question_.force = force;
    question_.tenant = store.options.tenant;
    if (removed_ != nullptr) *removed_ = 0;
  }

 private:
  Result<bool> page() override {
    MC_TRY(const auto client, store_.clients.take());
    MC_TRY(const store::RemovePrefixed part, client->call(question_));
    if (removed_ != nullptr) *removed_ += part.removed;
    if (refused_ == 0) why_ = part.why;
    refused_ += part.refused;
    question_.after = part.last;
    return part.more;
  }
  Result<> end() override {
    if (refused_ == 0) return {};
    return fail(Code::kBusy, "%llu not removed; the first: %s",
                static_cast<unsigned long long>(refused_), why_.c_str());
  }
  mc_store& store_;
  uint64_t* const removed_;
  store::RemovePrefix question_;
  uint64_t refused_ = 0;
  std::string why_;
};

}  // namespace

extern "C" {

mc_code mc_store_list(mc_store* store, const char* prefix, size_t prefix_bytes, mc_each each,
                      void* user) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const std::string wanted, prefix_of(prefix, prefix_bytes));
    MC_TRY_(capi::need(reinterpret_cast<const void*>(each), "each"));
    return Listing(*store, wanted, each, user).all();
  });
}

mc_code mc_store_list_async(mc_store* store, mc_queue* queue, uint64_t tag, const char* prefix,
                            size_t prefix_bytes, mc_each each, void* user) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const std::string wanted, prefix_of(prefix, prefix_bytes));
    MC_TRY_(capi::need(reinterpret_cast<const void*>(each), "each"));
    return capi::queue_up(*store, queue, tag,
                          std::make_shared<Listing>(*store, wanted, each, user));
  });
}

mc_code mc_store_remove_prefix(mc_store* store, const char* prefix, size_t prefix_bytes, int force,
                               uint64_t* removed) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const std::string wanted, prefix_of(prefix, prefix_bytes));
    return Removal(*store, wanted, force != 0, removed).all();
  });
}

mc_code mc_store_remove_prefix_async(mc_store* store, mc_queue* queue, uint64_t tag,
                                     const char* prefix, size_t prefix_bytes, int force,
                                     uint64_t* removed) {
  return guarded(store, [&]() -> Result<> {
    MC_TRY(const std::string wanted, prefix_of(prefix, prefix_bytes));
    return capi::queue_up(*store, queue, tag,
                          std::make_shared<Removal>(*store, wanted, force != 0, removed));
  });
}

mc_code mc_store_locate(mc_store* store, mc_key key, mc_place* places, size_t capacity,
                        size_t* count) {
  return guarded(store, [&]() -> Result<> {
    if (capacity > 0) MC_TRY_(capi::need(places, "places"));
    MC_TRY_(capi::need(count, "count"));
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
    MC_TRY_(capi::need(asked, "asked"));
    MC_TRY(*asked, client->prefetch(all));
    return {};
  });
}

}  // extern "C"
