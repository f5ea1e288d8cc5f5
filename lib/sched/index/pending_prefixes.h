// Lists the prefixes that prefill nodes compute or fetch, and when they are there.
//
// A request that arrives meanwhile and begins with such a prefix may wait for it, instead of
// computing it again. Blocks are known by tags; a tag stands for all blocks up to it. A prefix is
// found by the tag of its first missing block: a lookup costs a step for each distinct number of
// blocks that nodes had when they began.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/time.h"

namespace mc::sched {

struct PendingPrefix {
  std::string node;
  uint32_t first = 0, last = 0;  // blocks [first, last) of the prompt are missing yet
  Time ready{};                  // predicted: they are there
};

class PendingPrefixes {
 public:
  static constexpr size_t kFoundMax = 16;   // nodes
  static constexpr size_t kLookedAt = 256;  // requests with the same first missing block

  // A request has its node compute or fetch the blocks from `first` on, of these tags. It takes
  // `work`, from `start` on.
  void begin(uint64_t request, const std::string& node, std::span<const uint64_t> tags,
             uint32_t first, Time start, Duration work);
  void delay(uint64_t request, Time start);  // it starts then or later; may be unknown
  void end(uint64_t request);                // computed, or given up; may be unknown

  // Of each node the longest, of equals the soonest; those that come first by that order.
  std::vector<PendingPrefix> find(std::span<const uint64_t> tags) const;
  size_t size() const { return jobs_.size(); }

 private:
  struct Job {
    uint32_t node = 0;  // its place in nodes_
    std::vector<uint64_t> tags;
    uint32_t first = 0;
    Time start{};
    Duration work{};
  };
  struct Node {
    std::string name;
    size_t jobs = 0;  // 0: the place is free
  };
  struct Found {
    uint32_t node;  // its place in nodes_
    const std::string* name;
    uint32_t first, last;
    Time ready;
    bool operator<(const Found& o) const;  // by that order
  };
  uint32_t number_of(const std::string& node);
  void look_at(const Job& job, std::span<const uint64_t> tags, std::vector<Found>& found) const;

  std::vector<Node> nodes_;  // that have jobs
  std::vector<uint32_t> free_;
  std::unordered_map<std::string, uint32_t> numbers_;
  mutable std::vector<uint32_t> places_;    // of a find(): of each node, one more than its place
  std::unordered_map<uint64_t, Job> jobs_;  // by request
  // By the tag of the first missing block: requests, in the order of their numbers.
  std::unordered_map<uint64_t, std::map<uint64_t, const Job*>> by_tag_;
  struct First {
    uint32_t block;
    size_t requests;
  };
  std::vector<First>::iterator first_at(uint32_t block);
  std::vector<First> firsts_;  // missing blocks, in order, and how many requests have each
};

}  // namespace mc::sched
