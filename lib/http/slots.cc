#include "http/slots.h"

#include <algorithm>

namespace mc::http {

void ConnectionSlots::opened(Slot& slot, const std::string& host) {
  slot.address = &addresses_[host];
  slot.address->host = host;
  ++slot.address->connections;
}

void ConnectionSlots::leave(Slot& slot) {
  if (slot.place == Slot::Place::kUnfinished) {
    slot.address->unfinished.erase(slot.at);
    --unfinished_;
  } else if (slot.place == Slot::Place::kIdle) {
    idle_.erase(slot.at);
  }
  slot.place = Slot::Place::kNone;
}

void ConnectionSlots::closed(Slot& slot) {
  leave(slot);
  if (--slot.address->connections > 0) return;
  const std::string host = slot.address->host;  // it goes with the entry
  addresses_.erase(host);
}

void ConnectionSlots::unfinished(Slot& slot) {
  if (slot.place == Slot::Place::kUnfinished) return;
  leave(slot);
  slot.place = Slot::Place::kUnfinished;
  slot.at = slot.address->unfinished.insert(slot.address->unfinished.end(), &slot);
  ++unfinished_;
}

void ConnectionSlots::busy(Slot& slot) { leave(slot); }

void ConnectionSlots::idle(Slot& slot) {
  leave(slot);
  slot.place = Slot::Place::kIdle;
  slot.at = idle_.insert(idle_.end(), &slot);
}

const ConnectionSlots::Address* ConnectionSlots::largest() const {
  const auto most =
      std::max_element(addresses_.begin(), addresses_.end(), [](const auto& a, const auto& b) {
        return a.second.unfinished.size() < b.second.unfinished.size();
      });
  return &most->second;
}

}  // namespace mc::http
