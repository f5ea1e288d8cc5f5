// Read leases: a leased object is neither moved, evicted nor removed (unless forced). All leases
// have one length, so the list of leased objects is ordered by expiry. Granting, looking up and
// expiring are O(1) each and use only two links of the object.
//
// Thread: one owner. Pure: time is an argument.
// Source: Mooncake FAST'25, section 4.1.
#pragma once
#include "base/time.h"
#include "store/metadata/table.h"

namespace mc::store {

class Leases {
 public:
  Leases(Slab<Object>& objects, Duration ttl) : objects_(objects), list_(objects), ttl_(ttl) {}

  Time grant(Object& object, Time now);  // extends to now + ttl; returns the end
  void drop(Object& object);             // ends the lease early
  bool held(const Object& object, Time now) const { return object.leased && object.until > now; }
  // Removes and returns the object whose lease ended first; nullptr if none has ended.
  Object* expired(Time now);
  Time next_expiry() const { return list_.empty() ? Time::max() : objects_[list_.front()].until; }
  size_t size() const { return list_.size(); }
  Duration ttl() const { return ttl_; }

 private:
  Slab<Object>& objects_;
  IdList<Object, &Object::leases> list_;  // by end
  const Duration ttl_;
};

}  // namespace mc::store
