#include "store/metadata/leases.h"

#include <algorithm>

namespace mc::store {

Time Leases::grant(Object& object, Time now) {
  const Time end = now + ttl_;
  if (object.leased && object.until >= end) return object.until;
  if (object.leased) list_.erase(object.self);
  object.until = end;
  object.leased = true;
  list_.push_back(object.self);
  return end;
}

void Leases::drop(Object& object) {
  if (object.leased) list_.erase(object.self);
  object.leased = false;
  object.until = Time::min();
}

Object* Leases::expired(Time now) {
  if (list_.empty()) return nullptr;
  Object& object = objects_[list_.front()];
  if (object.until > now) return nullptr;
  drop(object);
  return &object;
}

}  // namespace mc::store
