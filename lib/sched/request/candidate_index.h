// Keeps the shortlist of candidate workers current.
//
// A decision over it equals one over all workers, and its cost does not grow with the cluster
// (sched/shortlist.h). Workers that the shortlist cannot rank are added one by one: those that
// drain, whose queue was corrected by their own answer, whose link is congested, or some fetches,
// whose queue is not in the order of arrival, or that use the pool otherwise than most. Some
// decisions need all workers: a request that must avoid some, one that does not fit the best of
// them, policies that draw. A pick looks again only at workers that changed since the last one
// (Roster::take_changed).
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "sched/request/fleet_views.h"
#include "sched/shortlist.h"

namespace mc::sched {

class CandidateIndex {
 public:
  static constexpr size_t kWeighAll = 64;  // workers; fewer are all compared, and all shown

  CandidateIndex(PolicyOptions options, const Cost& cost)
      : options_(std::move(options)), cost_(cost) {}

  struct Need {  // blocks that a request locks
    uint64_t prefill = 0;
    DecodeNeed decode;
  };
  // `apart`: workers that the lists cannot rank for this prompt. Returns: nothing when the decision
  // needs all workers.
  std::optional<View> pick(Roster& workers, const Matches& matches, const Ask& ask,
                           const Need& need, Time now,
                           std::span<const FleetWorker* const> apart = {});

 private:
  void rebuild(const Roster& workers);
  void look_at(const FleetWorker& worker, Time now);
  bool plain(const FleetWorker& worker, Time now) const;

  const PolicyOptions options_;
  const Cost& cost_;
  uint64_t steps_ = 0;              // Cost::step_version, of decodes_
  uint64_t members_ = 0;            // of the registry when the lists were made
  PoolUse pool_ = PoolUse::kNever;  // of most prefill workers
  std::optional<PrefillShortlist> prefills_;
  std::optional<DecodeShortlist> decodes_;
  std::vector<const FleetWorker*> by_slot_, by_number_;  // prefill, decode
  std::map<std::string, uint32_t> numbers_;              // of decode workers
  std::set<uint32_t> growing_;                           // of those: WorkerLoad::growth is above 0
  std::set<const FleetWorker*> odd_;                     // prefill workers that no list has
};

}  // namespace mc::sched
