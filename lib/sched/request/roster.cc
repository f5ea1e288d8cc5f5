#include "sched/request/roster.h"

#include <algorithm>
#include <utility>

namespace mc::sched {
namespace {

constexpr size_t kCountAll = 64;  // workers; fewer are counted each time

}  // namespace

void Roster::join(FleetWorker& worker) {
  worker.joined = ++joined_;
  workers_[worker.node] = by_name_[worker.node] = &worker;
  ++members_;
  note(worker);
}

void Roster::leave(FleetWorker& worker) {
  tell_others(worker, 0, 0);
  workers_.erase(worker.node);
  by_name_.erase(worker.node);
  std::erase(changed_, &worker);
  std::erase(recount_, &worker);
  live_[worker.prefill] -= worker.live ? 1 : 0;
  worker.live = worker.recount = false;
  ++members_;
}

void Roster::tell_others(FleetWorker& worker, uint64_t requests, uint64_t tokens) {
  if (worker.prefill) return;
  others_requests_ += requests - worker.others_requests;
  others_tokens_ += tokens - worker.others_tokens;
  worker.others_requests = requests;
  worker.others_tokens = tokens;
}

FleetWorker* Roster::find(const std::string& node) {
  const auto it = by_name_.find(node);
  if (it == by_name_.end()) return nullptr;
  note(*it->second);
  return it->second;
}

FleetWorker* Roster::find(const WorkerRef& ref) {
  FleetWorker* const worker = find(ref.node);
  return worker != nullptr && worker->joined == ref.joined ? worker : nullptr;
}

const FleetWorker* Roster::find(const WorkerRef& ref) const {
  const FleetWorker* const worker = look_up(ref.node);
  return worker != nullptr && worker->joined == ref.joined ? worker : nullptr;
}

const FleetWorker* Roster::look_up(const std::string& node) const {
  const auto it = by_name_.find(node);
  return it == by_name_.end() ? nullptr : it->second;
}

void Roster::note(FleetWorker& worker) {
  if (!std::exchange(worker.noted, true)) changed_.push_back(&worker);
  if (!std::exchange(worker.recount, true)) recount_.push_back(&worker);
}

std::vector<const FleetWorker*> Roster::take_changed() {
  for (FleetWorker* w : changed_) w->noted = false;
  std::vector<const FleetWorker*> all(changed_.begin(), changed_.end());
  changed_.clear();
  return all;
}

const FleetWorker* Roster::prefill_at(PrefixIndex::Slot slot) const {
  if (listed_ != members_) {
    by_slot_.assign(slots_, nullptr);
    for (const auto& [node, w] : workers_)
      if (w->prefill && w->slot < slots_) by_slot_[w->slot] = w;
    listed_ = members_;
  }
  return slot < by_slot_.size() ? by_slot_[slot] : nullptr;
}

// Of many workers only those are looked at that were found for changes.
size_t Roster::live(bool prefill) const {
  if (workers_.size() < kCountAll)
    return static_cast<size_t>(
        std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
          return entry.second->prefill == prefill && !entry.second->draining;
        }));
  for (FleetWorker* w : std::exchange(recount_, {})) {
    w->recount = false;
    live_[w->prefill] -= w->live ? 1 : 0;
    w->live = !w->draining;
    live_[w->prefill] += w->live ? 1 : 0;
  }
  return live_[prefill];
}

void Roster::slots_changed(size_t slots) {
  slots_ = slots;
  ++members_;  // who looks at slots looks again
}

}  // namespace mc::sched
