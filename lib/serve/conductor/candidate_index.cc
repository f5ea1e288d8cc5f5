#include "serve/conductor/candidate_index.h"

#include <algorithm>

namespace mc::serve {

sched::PrefillView prefill_view(const Worker& w, uint32_t match, double work_ms, int64_t priority,
                                uint64_t blocks, Time now) {
  return {.name = w.node,
          .usable = !w.draining && blocks <= w.load.blocks_total,
          .match = match,
          .queue_ms = w.ledger.wait_ms(now, work_ms, priority),
          .queued_tokens = w.ledger.tokens(),
          .requests = w.requests,
          .assigned = w.assigned,
          .congestion = w.congestion.factor(now),
          .pool = w.pool};
}

uint64_t blocks_reserved(const Worker& w, const DecodeNeed& need) {
  return w.load.growth > 0 ? need.prompt : need.whole;
}

int64_t room_of(const Worker& w) {
  const auto n = [](uint64_t blocks) { return static_cast<int64_t>(blocks); };
  const uint64_t kept = w.load.growth > 0 ? w.load.growth - 1 : 0;
  return n(w.load.blocks_free) - n(w.reserved_blocks) - n(kept);
}

sched::DecodeView decode_view(const Worker& w, const DecodeNeed& need) {
  return {.name = w.node,
          .usable = !w.draining && need.whole <= w.load.blocks_total,
          .room = room_of(w) >= static_cast<int64_t>(blocks_reserved(w, need)),
          .requests = w.requests,
          .context_tokens = w.context_tokens};
}

bool CandidateIndex::plain(const Worker& w, Time now) const {
  return !w.draining && w.pool == pool_ && !w.ledger.overtakes() && !w.ledger.corrected(now) &&
         w.congestion.factor(now) <= 1 && !w.fetches.any(now);
}

void CandidateIndex::rebuild(const WorkerRegistry& workers) {
  std::vector<std::string> prefills(workers.slots()), decodes;
  by_slot_.assign(workers.slots(), nullptr);
  by_number_.clear();
  numbers_.clear();
  odd_.clear();
  growing_.clear();
  std::map<sched::PoolUse, size_t> uses;
  for (const auto& [node, w] : workers.all()) {
    if (w->prefill) {
      if (++uses[w->pool] > uses[pool_]) pool_ = w->pool;
      prefills[w->slot] = node;
      by_slot_[w->slot] = w.get();
      odd_.insert(w.get());  // until it was looked at
    } else {
      numbers_[node] = static_cast<uint32_t>(decodes.size());
      decodes.push_back(node);
      by_number_.push_back(w.get());
    }
  }
  prefills_.emplace(options_, prefills);
  decodes_.emplace(cost_, decodes);
  members_ = workers.members();
}

void CandidateIndex::look_at(const Worker& w, Time now) {
  if (!w.prefill) {
    const uint32_t number = numbers_.at(w.node);
    if (w.load.growth > 0)
      growing_.insert(number);
    else
      growing_.erase(number);
    if (w.draining)
      decodes_->drop(number);
    else
      decodes_->put(number, w.requests, w.context_tokens, room_of(w));
  } else if (plain(w, now)) {
    odd_.erase(&w);
    prefills_->put(w.slot, sched::CandidateRank::of(w.ledger, w.requests, w.assigned));
  } else {
    odd_.insert(&w);
    prefills_->drop(w.slot);
  }
}

std::optional<sched::View> CandidateIndex::pick(WorkerRegistry& workers,
                                                const sched::Matches& matches,
                                                const sched::Ask& ask, const Need& need, Time now) {
  const std::string& p = options_.policy;
  if (workers.all().size() < kWeighAll || p == "random" || p == "rr" || p == "p2c")
    return std::nullopt;
  const std::vector<const Worker*> changed = workers.take_changed();
  if (members_ != workers.members()) {
    rebuild(workers);
    for (const auto& [node, w] : workers.all()) look_at(*w, now);
  } else {
    for (const Worker* w : changed) look_at(*w, now);
    if (steps_ != cost_.step_version())
      for (const Worker* w : by_number_) look_at(*w, now);
  }
  steps_ = cost_.step_version();
  for (const Worker* w : std::vector<const Worker*>(odd_.begin(), odd_.end())) look_at(*w, now);

  sched::View v;
  const auto add = [&](const Worker& w) {  // in the order of arrival `work` and priority are moot
    const auto length = matches.of(w.slot);
    const uint64_t most = ask.tokens == 0 ? 0 : (ask.tokens - 1) / ask.block_tokens;
    const double work =
        cost_.prefill_ms(ask.tokens, std::min<uint64_t>(length, most) * ask.block_tokens);
    v.prefill.push_back(prefill_view(w, length, work, 0, need.prefill, now));
  };
  for (const auto& [slot, usable] : prefills_->pick(matches, ask, now)) {
    const Worker* const w = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
    if (w == nullptr) return std::nullopt;  // of something that is no worker
    if (odd_.contains(w)) continue;
    add(*w);
    if (usable && !v.prefill.back().usable) return std::nullopt;  // too small: another may do
    v.prefill.back().usable = usable;
  }
  for (const Worker* w : odd_) add(*w);
  const bool mixed = !growing_.empty() && growing_.size() != by_number_.size();
  if (mixed) return std::nullopt;  // one list has one measure of room
  const uint64_t room = growing_.empty() ? need.decode.whole : need.decode.prompt;
  if (const auto number = decodes_->pick(room)) {
    v.decode.push_back(decode_view(*by_number_[*number], need.decode));
    if (!v.decode.back().usable) return std::nullopt;
  }
  return v;
}

}  // namespace mc::serve
