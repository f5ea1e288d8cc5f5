// Read leases: while an object is leased, its bytes are neither moved, evicted nor removed (unless
// forced). All leases have one length, so the list of leased objects is always ordered by expiry:
// granting, looking up and expiring are O(1) each.
//
// Thread: one owner. Pure: time is an argument.
// Source: Mooncake FAST'25, section 4.1.
#pragma once
#include <list>
#include <vector>

#include "base/time.h"

namespace mc::store {

// What the object carries for it.
struct Leased {
  Time lease_until = Time::min();
  std::list<Leased*>::iterator lease_at;
  bool in_leases = false;
};

class Leases {
 public:
  explicit Leases(Duration ttl) : ttl_(ttl) {}

  Time grant(Leased& object, Time now);  // extends to now + ttl; returns the end
  void drop(Leased& object);             // it is going away, or the lease does not matter any more
  bool held(const Leased& object, Time now) const { return object.lease_until > now; }
  // The object whose lease ended first, taken out; nullptr when none has ended.
  Leased* expired(Time now);
  Time next_expiry() const { return list_.empty() ? Time::max() : list_.front()->lease_until; }
  size_t size() const { return list_.size(); }
  Duration ttl() const { return ttl_; }

 private:
  const Duration ttl_;
  std::list<Leased*> list_;  // by lease_until
};

}  // namespace mc::store
