#include "sched/request/candidate_index.h"

#include <algorithm>

namespace mc::sched {

bool CandidateIndex::plain(const FleetWorker& w, Time now) const {
  return !w.draining && w.pool == pool_ && w.pipeline.stages == 1 && !w.ledger.overtakes() &&
         !w.ledger.corrected(now) && w.congestion.factor(now) <= 1 && !w.fetches.any(now);
}

void CandidateIndex::rebuild(const Roster& workers) {
  std::vector<std::string> prefills(workers.slots()), decodes;
  by_slot_.assign(workers.slots(), nullptr);
  by_number_.clear();
  numbers_.clear();
  odd_.clear();
  growing_.clear();
  std::map<PoolUse, size_t> uses;
  for (const auto& [node, w] : workers.all()) {
    if (w->prefill) {
      if (++uses[w->pool] > uses[pool_]) pool_ = w->pool;
      prefills[w->slot] = node;
      by_slot_[w->slot] = w;
      odd_.insert(w);  // until it was looked at
    } else {
      numbers_[node] = static_cast<uint32_t>(decodes.size());
      decodes.push_back(node);
      by_number_.push_back(w);
    }
  }
  prefills_.emplace(options_, prefills);
  decodes_.emplace(cost_, decodes);
  members_ = workers.members();
}

void CandidateIndex::look_at(const FleetWorker& w, Time now) {
  if (!w.prefill) {
    const uint32_t number = numbers_.at(w.node);
    if (w.growth > 0)
      growing_.insert(number);
    else
      growing_.erase(number);
    if (w.draining)
      decodes_->drop(number);
    else
      decodes_->put(number, w.requests + w.others_requests, w.context_tokens + w.others_tokens,
                    room_of(w));
  } else if (plain(w, now)) {
    odd_.erase(&w);
    prefills_->put(w.slot, CandidateRank::of(w.ledger, w.requests, w.assigned));
  } else {
    odd_.insert(&w);
    prefills_->drop(w.slot);
  }
}

std::optional<View> CandidateIndex::pick(Roster& workers, const Matches& matches, const Ask& ask,
                                         const Need& need, Time now,
                                         std::span<const FleetWorker* const> apart) {
  const std::string& p = options_.policy;
  if (workers.all().size() < kWeighAll || p == "random" || p == "rr" || p == "p2c")
    return std::nullopt;
  const std::vector<const FleetWorker*> changed = workers.take_changed();
  if (members_ != workers.members()) {
    rebuild(workers);
    for (const auto& [node, w] : workers.all()) look_at(*w, now);
  } else {
    for (const FleetWorker* w : changed) look_at(*w, now);
    if (steps_ != cost_.step_version())
      for (const FleetWorker* w : by_number_) look_at(*w, now);
  }
  steps_ = cost_.step_version();
  for (const FleetWorker* w : std::vector<const FleetWorker*>(odd_.begin(), odd_.end()))
    look_at(*w, now);
  for (const FleetWorker* w : apart) {  // until the next pick looks at them
    if (!w->prefill) continue;
    odd_.insert(w);
    prefills_->drop(w->slot);
  }

  View v;
  const auto add =
      [&](const FleetWorker& w) {  // in the order of arrival `work` and priority are moot
        const auto length = matches.of(w.slot);
        const uint64_t most = ask.tokens == 0 ? 0 : (ask.tokens - 1) / ask.block_tokens;
        const double work =
            cost_.prefill_ms(ask.tokens, std::min<uint64_t>(length, most) * ask.block_tokens);
        v.prefill.push_back(prefill_view(w, length, work, 0, need.prefill, now));
      };
  for (const auto& [slot, usable] : prefills_->pick(matches, ask, now)) {
    const FleetWorker* const w = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
    if (w == nullptr) return std::nullopt;  // of something that is no worker
    if (odd_.contains(w)) continue;
    add(*w);
    if (usable && !v.prefill.back().usable) return std::nullopt;  // too small: another may do
    v.prefill.back().usable = usable;
  }
  for (const FleetWorker* w : odd_) add(*w);
  const bool mixed = !growing_.empty() && growing_.size() != by_number_.size();
  if (mixed) return std::nullopt;  // one list has one measure of room
  const uint64_t room = growing_.empty() ? need.decode.whole : need.decode.prompt;
  if (const auto number = decodes_->pick(room)) {
    v.decode.push_back(decode_view(*by_number_[*number], need.decode));
    if (!v.decode.back().usable) return std::nullopt;
  }
  return v;
}

}  // namespace mc::sched
