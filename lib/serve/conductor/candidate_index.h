// Keeps the shortlist of candidate workers current.
//
// A decision over it equals one over all workers, and its cost does not grow with the cluster
// (sched/shortlist.h). Workers that the shortlist cannot rank are added one by one: those that
// drain, whose queue was corrected by their own answer, whose link is congested, or some fetches,
// whose queue is not in the order of arrival, or that use the pool otherwise than most. Some
// decisions need all workers: a request that must avoid some, one that does not fit the best of
// them, policies that draw. A pick looks again only at workers that changed since the last one
// (WorkerRegistry::take_changed).
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <memory>
#include <optional>
#include <set>

#include "sched/shortlist.h"
#include "serve/conductor/worker_registry.h"

namespace mc::serve {

// Blocks of a decode worker for a request: those of prompt and answer, and those of the prompt.
struct DecodeNeed {
  uint64_t whole = 0, prompt = 0;
};
uint64_t blocks_reserved(const Worker& w, const DecodeNeed& need);  // what that worker takes of it
int64_t room_of(const Worker& w);                                   // blocks for new requests

// A worker as choose() sees it. `blocks`: what it would lock for the request.
sched::PrefillView prefill_view(const Worker& w, uint32_t match, double work_ms, int64_t priority,
                                uint64_t blocks, Time now);
sched::DecodeView decode_view(const Worker& w, const DecodeNeed& need);

class CandidateIndex {
 public:
  static constexpr size_t kWeighAll = 64;  // workers; fewer are all compared, and all shown

  CandidateIndex(sched::PolicyOptions options, const sched::Cost& cost)
      : options_(std::move(options)), cost_(cost) {}

  struct Need {  // blocks that a request locks
    uint64_t prefill = 0;
    DecodeNeed decode;
  };
  // Returns: nothing when the decision needs all workers.
  std::optional<sched::View> pick(WorkerRegistry& workers, const sched::Matches& matches,
                                  const sched::Ask& ask, const Need& need, Time now);

 private:
  void rebuild(const WorkerRegistry& workers);
  void look_at(const Worker& worker, Time now);
  bool plain(const Worker& worker, Time now) const;

  const sched::PolicyOptions options_;
  const sched::Cost& cost_;
  uint64_t steps_ = 0;                            // Cost::step_version, of decodes_
  uint64_t members_ = 0;                          // of the registry when the lists were made
  sched::PoolUse pool_ = sched::PoolUse::kNever;  // of most prefill workers
  std::optional<sched::PrefillShortlist> prefills_;
  std::optional<sched::DecodeShortlist> decodes_;
  std::vector<const Worker*> by_slot_, by_number_;  // prefill, decode
  std::map<NodeId, uint32_t> numbers_;              // of decode workers
  std::set<uint32_t> growing_;                      // of those: WorkerLoad::growth is above 0
  std::set<const Worker*> odd_;                     // prefill workers that no list has
};

}  // namespace mc::serve
