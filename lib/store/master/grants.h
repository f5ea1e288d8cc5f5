// Puts that were granted and have neither ended nor been given back, by age.
//
// A put whose client asks again has its whole time from then on, if it was granted no longer ago
// than that time: so none holds its key for more than twice as long, however often its client asks.
//
// It also keeps the nonces of what was given back: of puts that their clients gave up before any
// answer came, and of single items. A copy of their put-start may come behind that, over another
// connection, and must be granted nothing. The first item of a put has the put's own nonce: with it
// the whole put is given up.
//
// Thread: one owner. Pure.
#pragma once
#include <deque>
#include <unordered_set>
#include <utility>

#include "store/metadata/table.h"

namespace mc::store {

class Grants {
 public:
  static constexpr size_t kGivenUpMax = 1 << 16;  // nonces; the oldest go first

  Grants(Slab<Object>& objects, Duration discard)
      : objects_(objects), list_(objects), discard_(discard) {}

  void begin(Object& object, uint64_t nonce, Time now);
  void renew(Object& object, Time now);
  void end(Object& object);
  // Whether it is being written by the put with this nonce; 0: none.
  static bool is_of(const Object* object, uint64_t nonce) {
    return nonce != 0 && object != nullptr && object->state == ObjectState::kWriting &&
           object->checksum == nonce;
  }
  bool over(const Object& object, Time now) const { return now - object.until >= discard_; }
  Object* expired(Time now);  // one whose time is over; nullptr: none
  Time deadline() const;      // when there is one

  bool give_up(uint64_t nonce, Time now);  // returns whether that is new
  bool given_up(uint64_t nonce) const { return !nonces_.empty() && nonces_.contains(nonce); }

 private:
  Slab<Object>& objects_;
  IdList<Object, &Object::queue> list_;
  const Duration discard_;
  std::deque<std::pair<Time, uint64_t>> order_;  // of the nonces
  std::unordered_set<uint64_t> nonces_;
};

}  // namespace mc::store
