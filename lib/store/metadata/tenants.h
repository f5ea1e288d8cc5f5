// Tracks each tenant's objects, segment bytes, quota and eviction queues.
//
// Thread: one owner. Pure.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "store/metadata/evict.h"

namespace mc::store {

struct Tenant {
  Tenant(std::string who, uint64_t may_use, Slab<Object>& slab, EvictPolicy policy)
      : name(std::move(who)),
        quota(may_use),
        queues{EvictQueue(slab, policy), EvictQueue(slab, policy), EvictQueue(slab, policy)} {}
  const std::string name;
  uint64_t quota;           // bytes of segments; 0: none
  uint64_t disk_quota = 0;  // bytes of values on disks, all copies; 0: none
  uint64_t used = 0, objects = 0;
  uint64_t offloading = 0;           // of `used`, what is free once the disks have it
  uint64_t refused = 0;              // puts refused by quota since start
  std::array<EvictQueue, 3> queues;  // in order of eviction
};

class Tenants {
 public:
  static constexpr uint16_t kMax = 4096;
  static constexpr uint16_t kNone = UINT16_MAX;

  // `quotas`: "name=4GiB,other=1GiB", the value of the option of that name. Errors: kInvalid.
  using Quotas = std::unordered_map<std::string, uint64_t>;
  static Result<Quotas> parse(const char* option, const std::string& quotas);

  // `disk_quotas`: limits of value bytes on the nodes' disks.
  Tenants(Slab<Object>& objects, EvictPolicy policy, Quotas quotas, Quotas disk_quotas = {});

  uint16_t find(std::string_view name) const;  // kNone for an unknown tenant; empty: "default"
  // Adds the tenant if it is unknown. Errors: kInvalid (malformed name); kBusy (too many tenants).
  Result<uint16_t> get(std::string_view name);
  Tenant& operator[](uint16_t tenant) { return *all_[tenant]; }
  const Tenant& operator[](uint16_t tenant) const { return *all_[tenant]; }
  const std::vector<std::unique_ptr<Tenant>>& all() const { return all_; }

  // The eviction queue of an object; nullptr while it must stay.
  EvictQueue* queue_of(const Object& object);

 private:
  Slab<Object>& objects_;
  const EvictPolicy policy_;
  const Quotas quotas_, disk_quotas_;
  std::vector<std::unique_ptr<Tenant>> all_;
  std::unordered_map<std::string, uint16_t> by_name_;
};

}  // namespace mc::store
