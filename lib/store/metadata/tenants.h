// Tracks each tenant's objects, segment bytes, quota, groups and eviction queues.
//
// Pinned bytes are those that eviction cannot free: of hard pins, of living contexts, and of the
// groups that have such a member. A share of the pool bounds them, of each tenant and of all.
//
// Thread: one owner. Pure.
#pragma once
#include <array>
#include <memory>
#include <span>
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
  uint64_t pinned = 0;               // of `used`, what eviction cannot free
  uint64_t offloading = 0;           // of `used`, what is free once the disks have it
  uint64_t refused = 0;              // puts refused by quota since start
  std::array<EvictQueue, 3> queues;  // in order of eviction
};

struct Group {  // objects that are leased and evicted together
  std::string name;
  std::vector<Id> members;
  uint64_t bytes = 0;    // of segments, of all members
  uint32_t staying = 0;  // members that eviction may not take
  uint64_t pinned() const { return staying > 0 ? bytes : 0; }
};

struct PinShares {  // fractions of the pool that pinned bytes may take
  double of_all = 1, of_tenant = 1;
};

class Tenants {
 public:
  static constexpr uint16_t kMax = 4096;
  static constexpr uint16_t kNone = UINT16_MAX;

  // `quotas`: "name=4GiB,other=1GiB", the value of the option of that name. Errors: kInvalid.
  using Quotas = std::unordered_map<std::string, uint64_t>;
  static Result<Quotas> parse(const char* option, const std::string& quotas);

  // `disk_quotas`: limits of value bytes on the nodes' disks.
  Tenants(Slab<Object>& objects, EvictPolicy policy, Quotas quotas, Quotas disk_quotas = {},
          PinShares shares = {});

  uint16_t find(std::string_view name) const;  // kNone for an unknown tenant; empty: "default"
  // Adds the tenant if it is unknown. Errors: kInvalid (malformed name); kBusy (too many tenants).
  static Result<> check(std::string_view name);  // empty: the default one
  Result<uint16_t> get(std::string_view name);
  // kNone if it is unknown, so that who asks does not use up the numbers. Who waits for what may be
  // put adds it, while there are less than half of them. Errors: kInvalid.
  Result<uint16_t> of_reader(std::string_view name, bool waits);
  Tenant& operator[](uint16_t tenant) { return *all_[tenant]; }
  const Tenant& operator[](uint16_t tenant) const { return *all_[tenant]; }
  const std::vector<std::unique_ptr<Tenant>>& all() const { return all_; }

  // The eviction queue of an object; nullptr while it must stay.
  EvictQueue* queue_of(const Object& object);

  // Whether eviction may not take such an object, nor its group.
  static bool stays(ObjectClass cls, Pin pin) {
    return pin == Pin::kHard || cls == ObjectClass::kContext;
  }

  // nullptr if the group has no members.
  const Group* find_group(uint16_t tenant, const std::string& name) const;
  Group* join(const Object& object, const std::string& name);  // nullptr: the group is full
  void leave(const Object& object, Group& group);              // its last member ends it

  // Counts an object of `bytes` in segments, in or out. Callers count it out, change its class, its
  // pin, its group (nullptr: none) or its bytes, and count it in.
  void count(const Object& object, Group* group, uint64_t bytes, bool in);
  uint64_t pinned() const { return pinned_; }
  // Whether an object of so many bytes in segments may be added, to this group or to none. Errors:
  // kNoSpace, if more is pinned then than the shares of a pool of `capacity` bytes allow.
  Result<> may_add(uint16_t tenant, const Group* group, bool stays, uint64_t bytes,
                   uint64_t capacity) const;
  // The same for another replica of an object, which must keep within its tenant's quota, too.
  Result<> may_copy(const Object& object, const Group* group, uint64_t bytes,
                    uint64_t capacity) const;
  // The same for `more` pinned bytes.
  Result<> may_pin(uint16_t tenant, uint64_t more, uint64_t capacity) const;

 private:
  Slab<Object>& objects_;
  const EvictPolicy policy_;
  const Quotas quotas_, disk_quotas_;
  const PinShares shares_;
  uint64_t pinned_ = 0;
  std::vector<std::unique_ptr<Tenant>> all_;
  std::unordered_map<std::string, uint16_t> by_name_;
  std::unordered_map<std::string, Group> groups_;  // by tenant and name
};

}  // namespace mc::store
