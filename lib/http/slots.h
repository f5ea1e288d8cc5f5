// Which connections give way to others. A connection whose request is read or answered keeps its
// slot. Those that have no complete request yet have slots of their own, so that peers who never
// finish one cannot take all; each address has a part of these. The oldest of the address that has
// most gives way. Those that wait for their next request give way when all slots are taken.
//
// Thread: one owner. Pure.
#pragma once
#include <cstddef>
#include <list>
#include <map>
#include <string>

namespace mc::http {

class ConnectionSlots {
 public:
  struct Limits {
    size_t unfinished, unfinished_per_address;
  };
  struct Address;
  // One connection's, in the connection: it does not move.
  struct Slot {
    enum class Place { kNone, kUnfinished, kIdle };
    void* connection = nullptr;
    Place place = Place::kNone;
    Address* address = nullptr;
    std::list<Slot*>::iterator at{};
  };
  struct Address {
    std::list<Slot*> unfinished;  // the oldest first
    size_t connections = 0;
    std::string host{};
  };

  explicit ConnectionSlots(Limits limits) : limits_(limits) {}
  void opened(Slot& slot, const std::string& host);  // without a place
  void closed(Slot& slot);
  void unfinished(Slot& slot);  // no complete request; it may be so already
  void busy(Slot& slot);        // its request is answered
  void idle(Slot& slot);        // it waits for its next request

  // Who gives way since more than the limits are unfinished; nullptr: nobody. `spared` says of a
  // connection that it has bytes which nobody has read yet.
  template <class Spared>
  Slot* over_limit(const Slot& newest, Spared spared) const;
  // Who gives way to a new connection when all slots are taken.
  template <class Spared>
  Slot* oldest(Spared spared) const;

 private:
  static constexpr size_t kLooks = 16;  // at one list: a busy server looks no further
  template <class Spared>
  static Slot* first(const std::list<Slot*>& list, const Slot* but, Spared spared);
  const Address* largest() const;
  void leave(Slot& slot);

  const Limits limits_;
  std::map<std::string, Address> addresses_;
  std::list<Slot*> idle_;  // the longest idle first
  size_t unfinished_ = 0;
};

template <class Spared>
ConnectionSlots::Slot* ConnectionSlots::first(const std::list<Slot*>& list, const Slot* but,
                                              Spared spared) {
  size_t looks = 0;
  for (Slot* const slot : list) {
    if (++looks > kLooks) break;
    if (slot != but && !spared(*slot)) return slot;
  }
  return nullptr;
}

template <class Spared>
ConnectionSlots::Slot* ConnectionSlots::over_limit(const Slot& newest, Spared spared) const {
  if (newest.address->unfinished.size() > limits_.unfinished_per_address)
    return first(newest.address->unfinished, &newest, spared);
  return unfinished_ > limits_.unfinished ? first(largest()->unfinished, &newest, spared) : nullptr;
}

template <class Spared>
ConnectionSlots::Slot* ConnectionSlots::oldest(Spared spared) const {
  if (unfinished_ > 0 && unfinished_ >= idle_.size())
    if (Slot* const found = first(largest()->unfinished, nullptr, spared)) return found;
  return first(idle_, nullptr, spared);
}

}  // namespace mc::http
