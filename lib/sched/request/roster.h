// The workers of a cluster, as decisions see them.
//
// A driver owns the workers; it registers each while it is alive. A worker that was given up and is
// heard again is another one, even if its process is the same: what was charged to the first is not
// refunded to the second.
//
// Thread: one owner.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sched/cost.h"
#include "sched/ledger.h"
#include "sched/pool/pool_index.h"
#include "sched/prefix_index.h"
#include "sched/step_rate.h"

namespace mc::sched {

// One worker from when it joined until it is gone.
struct WorkerRef {
  std::string node;
  uint64_t epoch = 0;  // of its process; an older process of that name is another worker
  uint64_t joined = 0;
  explicit operator bool() const { return !node.empty(); }
  bool operator==(const WorkerRef&) const = default;
};

struct FleetWorker {
  std::string node;
  bool prefill = false;
  uint64_t epoch = 0;
  uint64_t joined = 0;  // a number of its own, by Roster::join
  std::string control;  // the address of its process
  bool draining = false;
  uint64_t blocks_total = 0, blocks_free = 0, blocks_cached = 0;  // as it said last
  // Decode: above 0, answers take blocks as they grow, and growth - 1 blocks stay free. 0: a
  // request takes the blocks of its prompt and answer at once.
  uint64_t growth = 0;

  // Prefill: its part of the index.
  PrefixIndex::Slot slot = 0;
  PoolUse pool = PoolUse::kNever;
  Pipeline pipeline{};

  // What it was given to do.
  Ledger ledger;                  // prefill
  Congestion congestion;          // prefill: of its link
  FetchLinks fetches;             // prefill: from others
  uint64_t assigned = 0;          // requests so far
  uint64_t requests = 0;          // now
  uint64_t context_tokens = 0;    // decode: of its requests
  uint64_t answering = 0;         // decode: requests that produce tokens
  uint64_t answering_tokens = 0;  // decode: of their prompts
  uint64_t reserved_blocks = 0;   // decode: since it spoke last
  // Decode: what other conductors gave it, as it says.
  uint64_t others_requests = 0, others_tokens = 0;
  uint64_t spoke = 0;                  // how many times its blocks were told
  StepWatch steps;                     // decode
  bool noted = false;                  // among those that changed
  bool recount = false, live = false;  // among those to be counted; counted as not draining

  WorkerRef ref() const { return {node, epoch, joined}; }
};

class Roster {
 public:
  void join(FleetWorker& worker);  // it stays where it is until leave()
  void leave(FleetWorker& worker);

  // For changes to the worker: take_changed() lists it then.
  FleetWorker* find(const std::string& node);
  FleetWorker* find(const WorkerRef& ref);
  const FleetWorker* find(const WorkerRef& ref) const;
  const FleetWorker* look_up(const std::string& node) const;  // nullptr: there is none
  void note(FleetWorker& worker);
  // The workers found for changes since the last call; none that left.
  std::vector<const FleetWorker*> take_changed();

  const std::map<std::string, FleetWorker*>& all() const { return workers_; }
  // A decode worker tells what others gave it. others_*(): all of them together.
  void tell_others(FleetWorker& worker, uint64_t requests, uint64_t tokens);
  uint64_t others_requests() const { return others_requests_; }
  uint64_t others_tokens() const { return others_tokens_; }

  size_t live(bool prefill) const;               // not draining
  uint64_t members() const { return members_; }  // another number when one joins or leaves
  void slots_changed(size_t slots);              // of the index: one more than the largest
  size_t slots() const { return slots_; }
  const FleetWorker* prefill_at(PrefixIndex::Slot slot) const;  // nullptr: no worker has it

 private:
  std::map<std::string, FleetWorker*> workers_;
  std::unordered_map<std::string, FleetWorker*> by_name_;  // the same
  std::vector<FleetWorker*> changed_;
  uint64_t members_ = 0, joined_ = 0;
  size_t slots_ = 0;
  uint64_t others_requests_ = 0, others_tokens_ = 0;
  mutable std::vector<const FleetWorker*> by_slot_;  // at `listed_` of members_
  mutable uint64_t listed_ = 0;
  mutable std::vector<FleetWorker*> recount_;  // found for changes since live_ was right
  mutable size_t live_[2] = {};                // decode, prefill
};

}  // namespace mc::sched
