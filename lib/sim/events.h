// What happens next in virtual time. Events of one time come out in the order they were put in, so
// a run depends on nothing but its input.
//
// Thread: one owner. Pure: time is what the events say.
#pragma once
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "base/time.h"

namespace mc::sim {

template <class Event>
class Events {
 public:
  void push(Time at, Event event) { queue_.push({at, number_++, std::move(event)}); }
  bool empty() const { return queue_.empty(); }
  Time next() const { return queue_.top().at; }
  Event pop() {
    Event event = queue_.top().event;
    queue_.pop();
    return event;
  }

 private:
  struct Entry {
    Time at;
    uint64_t number;
    Event event;
    bool operator<(const Entry& other) const {  // priority_queue has the largest on top
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  std::priority_queue<Entry> queue_;
  uint64_t number_ = 0;
};

}  // namespace mc::sim
