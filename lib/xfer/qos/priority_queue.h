// Pure: a queue of three priority classes that share a link by weight. It is work-conserving: a
// class that waits alone gets the whole link, and an idle class saves up no credit. Within a
// class, first come first served. A class that was idle goes next, before all that waits.
//
// Ageing: a class whose head has been its head for `age_max` goes next, so that no class starves;
// but only once in kAgedEvery pops, so that a long queue on a slow link, where everything is old,
// is still served by weight. A head waits at most age_max, and then the next few pops.
//
// Thread: one at a time (its owner's mutex). All but remove_if are O(1) amortised.
// Source: start-time fair queueing (Goyal, Vin, Cheng 1996), which unlike deficit round robin lets
// a small class go at once instead of at its turn. TENT paper 3.3.2 only names quotas.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace mc::xfer {

enum class Priority : uint8_t { kHigh, kMedium, kLow };
inline constexpr size_t kPriorities = 3;
const char* name(Priority priority);

struct QosConfig {
  std::array<uint32_t, kPriorities> weights{16, 4, 1};  // 0 counts as 1
  Duration age_max = std::chrono::milliseconds(100);
};

// "16:4:1": high, medium, low; each from 1 to 1000. kInvalid.
Result<std::array<uint32_t, kPriorities>> parse_weights(const std::string& text);

// The classes that may go now, a bit each.
using ClassMask = uint8_t;
inline constexpr ClassMask kAllClasses = (1u << kPriorities) - 1;
constexpr ClassMask mask_of(Priority p) {
  return static_cast<ClassMask>(1u << static_cast<uint8_t>(p));
}

// Chooses the class that goes next, from the events below alone.
class ClassChooser {
 public:
  explicit ClassChooser(QosConfig config);
  void filled(Priority p, Time now);  // its queue was empty before
  std::optional<Priority> choose(ClassMask waiting, ClassMask may, Time now) const;
  // What choose() named is served. `waiting`: the classes that still wait, after it.
  void served(Priority p, uint64_t bytes, ClassMask waiting, ClassMask may, Time now);

  static constexpr uint32_t kAgedEvery = 8;

 private:
  struct Class {
    double start = 0;   // virtual time of its head
    double weight = 1;  // bytes a unit of virtual time
    Time head_since{};
  };
  std::optional<Priority> aged(ClassMask of, Time now) const;
  std::array<Class, kPriorities> classes_;
  Duration age_max_;
  double virtual_now_ = 0;
  uint32_t since_aged_ = kAgedEvery;  // pops
};

template <class T>
class PriorityQueue {
 public:
  explicit PriorityQueue(QosConfig config = {}) : chooser_(config) {}

  void push(T item, Priority p, uint64_t bytes, Time now) {
    add(p, bytes, now).push_back({std::move(item), bytes});
  }
  void push_front(T item, Priority p, uint64_t bytes, Time now) {  // a retry: next of its class
    add(p, bytes, now).push_front({std::move(item), bytes});
  }
  // What pop() with the same arguments gives; null when nothing that may go waits.
  T* head(Time now, ClassMask may = kAllClasses) {
    const auto p = chooser_.choose(waiting_, may, now);
    return p ? &queue(*p).front().item : nullptr;
  }
  std::optional<T> pop(Time now, ClassMask may = kAllClasses) {
    const auto p = chooser_.choose(waiting_, may, now);
    if (!p) return std::nullopt;
    Entry entry = std::move(queue(*p).front());
    queue(*p).pop_front();
    removed(*p, entry.bytes);
    chooser_.served(*p, entry.bytes, waiting_, may, now);
    return std::move(entry.item);
  }
  // The first `bytes` of what head() gives, with the same arguments, are taken from it.
  void shorten_head(uint64_t bytes, Time now, ClassMask may = kAllClasses) {
    const auto p = chooser_.choose(waiting_, may, now);
    if (!p) return;
    queue(*p).front().bytes -= bytes;
    bytes_[static_cast<size_t>(*p)] -= bytes;
    chooser_.served(*p, bytes, waiting_, may, now);
  }
  // Takes the first item that matches, most urgent class first. It does not count in the shares.
  template <class Match>
  std::optional<T> pop_if(Match match) {
    for (size_t c = 0; c < kPriorities; ++c)
      for (auto e = queues_[c].begin(); e != queues_[c].end(); ++e) {
        if (!match(std::as_const(e->item))) continue;
        T item = take(c, *e);
        queues_[c].erase(e);
        if (queues_[c].empty()) waiting_ &= static_cast<ClassMask>(~(1u << c));
        return item;
      }
    return std::nullopt;
  }
  size_t size() const { return size_; }
  size_t size(Priority p) const { return queues_[static_cast<size_t>(p)].size(); }
  bool empty() const { return size_ == 0; }
  uint64_t bytes() const { return bytes_[0] + bytes_[1] + bytes_[2]; }
  uint64_t bytes(Priority p) const { return bytes_[static_cast<size_t>(p)]; }
  ClassMask waiting() const { return waiting_; }

  // Takes all items that match; the order of the rest stays.
  template <class Match>
  std::vector<T> remove_if(Match match) {
    std::vector<T> out;
    for (size_t c = 0; c < kPriorities; ++c) {
      std::deque<Entry>& all = queues_[c];
      auto kept = all.begin();  // nothing is moved before the first match
      for (auto e = all.begin(); e != all.end(); ++e)
        if (match(std::as_const(e->item)))
          out.push_back(take(c, *e));
        else if (kept++ != e)
          *std::prev(kept) = std::move(*e);
      all.erase(kept, all.end());
      if (all.empty()) waiting_ &= static_cast<ClassMask>(~(1u << c));
    }
    return out;
  }

 private:
  struct Entry {
    T item;
    uint64_t bytes;
  };
  std::deque<Entry>& queue(Priority p) { return queues_[static_cast<size_t>(p)]; }
  std::deque<Entry>& add(Priority p, uint64_t bytes, Time now) {
    if ((waiting_ & mask_of(p)) == 0) chooser_.filled(p, now);
    waiting_ |= mask_of(p);
    bytes_[static_cast<size_t>(p)] += bytes;
    ++size_;
    return queue(p);
  }
  void removed(Priority p, uint64_t bytes) {
    bytes_[static_cast<size_t>(p)] -= bytes;
    --size_;
    if (queue(p).empty()) waiting_ &= static_cast<ClassMask>(~mask_of(p));
  }
  T take(size_t c, Entry& e) {
    bytes_[c] -= e.bytes;
    --size_;
    return std::move(e.item);
  }

  ClassChooser chooser_;
  std::array<std::deque<Entry>, kPriorities> queues_;
  std::array<uint64_t, kPriorities> bytes_{};
  size_t size_ = 0;
  ClassMask waiting_ = 0;
};

}  // namespace mc::xfer
