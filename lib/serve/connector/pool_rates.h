// Learns how fast blocks come from the pool, by where they are: memory of this host, memory of
// another, a disk, and of each by the node that has them.
//
// A fetch of blocks from several places takes the sum of their times. What the slower places do not
// explain is never charged to the faster ones. A node that was not fetched from yet is as fast as
// others of its kind. What was learned fades within minutes, as nobody fetches from a place that is
// thought slow.
//
// Thread: one owner. Pure: time is an argument. Size: kNodesMax places at most.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>

#include "base/time.h"
#include "store/client/client.h"

namespace mc::serve {

class PoolRates {
 public:
  static constexpr size_t kNodesMax = 256;
  using At = store::StoredAt;
  using Place = store::StoredPlace;
  using Bytes = std::map<Place, uint64_t>;

  static Bytes of(std::span<const Place> places, uint64_t block_bytes);
  // Memory is as fast as this until there is better, and disks are not faster.
  explicit PoolRates(double memory_bytes_per_s = 2e9);
  double fetch_seconds(const Bytes& bytes) const;
  // How many of the leading blocks are worth fetching: the number that saves most. 0: none.
  // saved(n): seconds of computing the first n.
  size_t worth(std::span<const Place> places, uint64_t block_bytes,
               const std::function<double(size_t)>& saved) const;

  void learn_round_trip(double seconds);
  void learn(const Bytes& bytes, double seconds);
  void advance(Time now);
  double bytes_per_s(const Place& place) const { return 1 / slow(place); }

 private:
  struct Node {
    double slow = 0;
    Time learned{};
  };
  double slow(const Place& place) const;
  void learn_node(const Place& place, double seen);

  double round_trip_s_ = 0.001;
  // Seconds a byte, of all nodes, by place: at the start, and as learned.
  std::array<double, store::kStoredAts> start_, slow_;
  std::map<Place, Node> nodes_;
  Time now_{};
};

}  // namespace mc::serve
