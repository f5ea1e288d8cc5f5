// Sums requests and their tokens up to a point in time.
//
// Requests lie in chunks that know their sums, so the cost of a query hardly grows with their
// number.
//
// Thread: one owner. Pure. Costs: with n requests, a change n / kChunk at worst (mostly: within a
// chunk), a question n / kChunk and a chunk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace mc::sched {

class TimeSums {
 public:
  static constexpr size_t kChunk = 512;  // entries of one, at most

  void add(Time at, uint64_t id, uint64_t tokens);  // no other of that time and id
  void remove(Time at, uint64_t id);                // it must be there

  struct Sum {
    uint64_t requests = 0, tokens = 0;
  };
  Sum until(Time at) const;  // inclusive

 private:
  struct Entry {
    Time at;
    uint64_t id, tokens;
    bool operator<(const Entry& o) const { return at != o.at ? at < o.at : id < o.id; }
  };
  struct Chunk {
    std::vector<Entry> entries;  // in order, never none
    uint64_t tokens = 0;         // their sum
    Entry last;                  // of them
  };
  std::vector<Chunk>::iterator chunk_of(const Entry& e);

  std::vector<Chunk> chunks_;  // in order
};

}  // namespace mc::sched
