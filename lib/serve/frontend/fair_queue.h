// Orders work of several owners: one of each in turn, and the work of one owner as it came.
// What is larger than `large` waits where the caller takes none of that size, and does not hold up
// smaller work behind it.
//
// Thread: one owner. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

namespace mc::serve {

struct FairQueueLimits {
  size_t large = 256 * 1024;  // bytes
  size_t owner_count = 1024, owner_bytes = size_t{256} << 20;
  size_t count = 4096, bytes = size_t{512} << 20;
};

class FairQueue {
 public:
  using Owner = size_t;
  struct Item {
    uint64_t id = 0;
    size_t bytes = 0;
    bool large = false;
  };
  enum class Verdict : uint8_t { kTaken, kOwnerFull, kFull };

  explicit FairQueue(FairQueueLimits limits) : limits_(limits) {}
  // Work of more than owner_bytes is taken where it is the owner's only one.
  Verdict push(Owner owner, uint64_t id, size_t bytes);
  std::optional<Item> pop(bool large_too);
  bool erase(uint64_t id);
  size_t size() const { return count_; }

 private:
  struct Waiting {
    std::deque<Item> items;
    size_t bytes = 0;
  };
  Item take(std::map<Owner, Waiting>::iterator owner, std::deque<Item>::iterator item);

  const FairQueueLimits limits_;
  std::map<Owner, Waiting> owners_;  // with something that waits
  Owner last_ = 0;                   // whose work was popped last
  size_t count_ = 0, bytes_ = 0;
};

}  // namespace mc::serve
