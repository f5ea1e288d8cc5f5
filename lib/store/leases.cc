#include "store/leases.h"

#include <algorithm>

namespace mc::store {

Time Leases::grant(Leased& object, Time now) {
  object.lease_until = std::max(object.lease_until, now + ttl_);
  if (object.in_leases) {
    list_.splice(list_.end(), list_, object.lease_at);
  } else {
    object.lease_at = list_.insert(list_.end(), &object);
    object.in_leases = true;
  }
  return object.lease_until;
}

void Leases::drop(Leased& object) {
  if (object.in_leases) list_.erase(object.lease_at);
  object.in_leases = false;
  object.lease_until = Time::min();
}

Leased* Leases::expired(Time now) {
  if (list_.empty() || list_.front()->lease_until > now) return nullptr;
  Leased* object = list_.front();
  drop(*object);
  return object;
}

}  // namespace mc::store
