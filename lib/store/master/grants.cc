#include "store/master/grants.h"

namespace mc::store {
namespace {

// When it was granted first, kept in a link that no put needs.
void set_first(Object& object, Time first) {
  const auto n = static_cast<uint64_t>(first.time_since_epoch().count());
  object.leases = {static_cast<Id>(n >> 32), static_cast<Id>(n)};
}

Time first_of(const Object& object) {
  const uint64_t n = uint64_t{object.leases.prev} << 32 | object.leases.next;
  return Time(Duration(static_cast<int64_t>(n)));
}

}  // namespace

void Grants::begin(Object& object, uint64_t nonce, Time now) {
  object.until = now;
  object.checksum = nonce;
  set_first(object, now);
  list_.push_back(object.self);
}

void Grants::renew(Object& object, Time now) {
  if (now - first_of(object) > discard_) return;
  object.until = now;
  list_.erase(object.self);
  list_.push_back(object.self);
}

void Grants::end(Object& object) {
  list_.erase(object.self);
  object.leases = {};
}

Object* Grants::expired(Time now) {
  if (list_.empty()) return nullptr;
  Object& oldest = objects_[list_.front()];
  return over(oldest, now) ? &oldest : nullptr;
}

Time Grants::deadline() const {
  return list_.empty() ? Time::max() : objects_[list_.front()].until + discard_;
}

bool Grants::give_up(uint64_t nonce, Time now) {
  if (!nonces_.insert(nonce).second) return false;
  order_.emplace_back(now, nonce);
  while (order_.size() > kGivenUpMax || now - order_.front().first > discard_) {
    nonces_.erase(order_.front().second);
    order_.pop_front();
  }
  return true;
}

}  // namespace mc::store
