// Knows which KV blocks of this model the pool has: follows mc-master and indexes block hashes.
//
// Objects are named as workers name them (serve/connector/store_connector.h): what has another
// model, layout or rank is of others and does not count. The view is a hint: a worker that fetches
// asks the pool itself. While there is none (no master, or it is gone) nothing counts as pooled.
//
// Bounded: by `blocks_max`, twice that while a new snapshot is taken (sched/pool/pool_index.h); by
// kNodesMax names of nodes, of later ones the tier alone is known.
// Thread: the loop's.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "io/loop.h"
#include "sched/policy.h"
#include "sched/pool/pool_index.h"
#include "store/client/object_follower.h"

namespace mc::serve {

class PoolView {
 public:
  static constexpr size_t kNodesMax = 65'535;

  // `masters`: empty: there is no pool. `model`: ModelSpec::pool_name(). `patience`: a master that
  // is silent for longer is gone.
  // Errors: those of store::ObjectFollower::open.
  static Result<std::unique_ptr<PoolView>> open(io::Loop& loop, const std::string& masters,
                                                const std::string& model, uint64_t blocks_max,
                                                Duration patience, Metrics& metrics);
  PoolView(const PoolView&) = delete;
  PoolView& operator=(const PoolView&) = delete;

  bool followed() const { return follower_ != nullptr; }
  // The view in use, or of the first snapshot as far as it is taken.
  const sched::PoolIndex& index() const { return *(view_ ? view_ : fresh_); }
  Json state() const;  // for /cluster
  // The same: of each node that was measured, after those of others, which have no name.
  Json rates(const sched::Cost& cost) const;
  void update_metrics();  // gauges; before they are printed
  // Counts the tokens that a decision expected from the pool, and those that came.
  void expected(uint64_t memory_tokens, uint64_t disk_tokens);
  void came(uint64_t tokens);
  void tick();  // frees what is not used any more, in parts

 private:
  PoolView(std::string prefix, uint64_t blocks_max, Metrics& metrics);
  void object(const ObjectKey& key, store::EventTier tier, std::string_view node);
  uint16_t number_of(std::string_view node);
  void retire(std::unique_ptr<sched::PoolIndex>& index);
  std::unique_ptr<sched::PoolIndex> empty_index() const;

  const std::string prefix_;  // of the keys
  const uint64_t blocks_max_;
  Metrics& metrics_;
  struct {
    Counter &memory, &disk;
  } predicted_;
  Counter& came_;
  std::unique_ptr<sched::PoolIndex> view_;   // whole; nullptr: none
  std::unique_ptr<sched::PoolIndex> fresh_;  // of the snapshot being taken; after it empty
  std::vector<std::string> nodes_;           // that have blocks, in the order of their numbers
  std::map<std::string, uint16_t, std::less<>> numbers_;  // from 1 on
  bool begun_ = false;                                    // between on_begin and on_whole
  bool warned_ = false;  // that the pool is not known, since it was
  std::deque<std::unique_ptr<sched::PoolIndex>> retired_;
  std::unique_ptr<store::ObjectFollower> follower_;
};

}  // namespace mc::serve
