// Orders events in virtual time.
// Events of one time come out in the order they went in, so a run depends only on its input.
//
// Thread: one owner. Pure: time is what the events say.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/time.h"

namespace mc::sim {

template <class Event>
class Events {
 public:
  void push(Time at, Event event) {
    heap_.push_back({at, number_++, std::move(event)});
    size_t i = heap_.size() - 1;
    Entry rising = std::move(heap_[i]);
    for (; i > 0 && rising.before(heap_[(i - 1) / kArity]); i = (i - 1) / kArity)
      heap_[i] = std::move(heap_[(i - 1) / kArity]);
    heap_[i] = std::move(rising);
  }
  bool empty() const { return heap_.empty(); }
  Time next() const { return heap_.front().at; }
  Event pop() {
    Event event = std::move(heap_.front().event);
    Entry sinking = std::move(heap_.back());
    heap_.pop_back();
    const size_t n = heap_.size();
    if (n == 0) return event;
    size_t i = 0;
    for (size_t first = 1; first < n; first = kArity * i + 1) {
      size_t least = first;
      for (size_t k = first + 1; k < std::min(first + kArity, n); ++k)
        if (heap_[k].before(heap_[least])) least = k;
      if (!heap_[least].before(sinking)) break;
      heap_[i] = std::move(heap_[least]);
      i = least;
    }
    heap_[i] = std::move(sinking);
    return event;
  }

 private:
  // Four children to a node: half as deep as with two, and siblings are adjacent in memory.
  static constexpr size_t kArity = 4;
  struct Entry {
    Time at;
    uint64_t number;
    Event event;
    bool before(const Entry& other) const {
      return at != other.at ? at < other.at : number < other.number;
    }
  };
  std::vector<Entry> heap_;
  uint64_t number_ = 0;
};

}  // namespace mc::sim
