// Keeps the shortlist of candidate workers current.
//
// A decision over it equals one over all workers, and its cost does not grow with the cluster
// (sched/shortlist.h). While a worker's queue is corrected by its own answer its rank is a bound.
// Workers that the shortlist cannot rank are added one by one: those that drain, whose queue is not
// in the order of arrival, that are pipelines, that use the pool otherwise than most, or whose
// fetches from those who hold the longest match are slow. Some decisions need all workers: a
// request that must avoid some, one that does not fit the best of them, policies that draw. A pick
// looks again only at workers that changed since the last one (Roster::take_changed), and at those
// whose rank is no bound any more.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sched/request/fleet_views.h"
#include "sched/shortlist.h"
#include "sched/tournament.h"

namespace mc::sched {

class CandidateIndex {
 public:
  static constexpr size_t kWeighAll = 64;  // workers; fewer are all compared, and all shown

  CandidateIndex(PolicyOptions options, const Cost& cost)
      : options_(std::move(options)),
        by_cache_(options_.policy == "kvcache" || options_.policy == "local"),
        cost_(cost) {}

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
  bool plain(const FleetWorker& worker) const;
  std::optional<Time> bound_until(const FleetWorker& worker, Time now) const;
  void set_apart(const FleetWorker& worker);
  void note_links(const FleetWorker& worker);
  void set_slow_apart(const Matches& matches);

  const PolicyOptions options_;
  const bool by_cache_;
  const Cost& cost_;
  uint64_t steps_ = 0;              // Cost::step_version, of decodes_
  uint64_t members_ = 0;            // of the registry when the lists were made
  PoolUse pool_ = PoolUse::kNever;  // of most prefill workers
  std::optional<PrefillShortlist> prefills_;
  std::optional<DecodeShortlist> decodes_;
  std::vector<const FleetWorker*> by_slot_, by_number_;       // prefill, decode
  std::unordered_map<const FleetWorker*, uint32_t> numbers_;  // of decode workers
  std::set<uint32_t> growing_;                                // of those: growth is above 0
  std::set<const FleetWorker*> odd_;                          // prefill workers that no list has
  // From whom a worker's fetches were slow, at a version of its FetchLinks; and the reverse.
  std::unordered_map<const FleetWorker*, std::pair<uint64_t, std::vector<std::string>>> links_;
  std::unordered_map<std::string, std::set<const FleetWorker*>> slow_readers_;
  std::optional<Tournament<std::pair<Time, uint32_t>>>
      bound_;  // slots: until when ranks are bounds
};

}  // namespace mc::sched
