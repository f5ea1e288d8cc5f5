#include "sched/request/candidate_index.h"

#include <algorithm>

namespace mc::sched {

namespace {
constexpr Duration kLookAgain = std::chrono::milliseconds(1);  // after a bound that lasts longer
constexpr size_t kHoldersAsked = 64;
}  // namespace

bool CandidateIndex::plain(const FleetWorker& w) const {
  return !w.draining && w.pool == pool_ && w.pipeline.stages == 1 && !w.ledger.overtakes();
}

// Until when it may be worse placed than its rank, as far as the policy looks at that.
std::optional<Time> CandidateIndex::bound_until(const FleetWorker& w, Time now) const {
  if (!by_cache_ && options_.policy != "load") return std::nullopt;
  if (!w.ledger.corrected(now)) return std::nullopt;
  return std::max(w.ledger.corrected_until(), now + kLookAgain);
}

void CandidateIndex::rebuild(const Roster& workers) {
  std::vector<std::string> prefills(workers.slots()), decodes;
  by_slot_.assign(workers.slots(), nullptr);
  by_number_.clear();
  numbers_.clear();
  odd_.clear();
  links_.clear();
  slow_readers_.clear();
  growing_.clear();
  std::map<PoolUse, size_t> uses;
  for (const auto& [node, w] : workers.all()) {
    if (w->prefill) {
      if (++uses[w->pool] > uses[pool_]) pool_ = w->pool;
      prefills[w->slot] = node;
      by_slot_[w->slot] = w;
      odd_.insert(w);  // until it was looked at
    } else {
      numbers_[w] = static_cast<uint32_t>(decodes.size());
      decodes.push_back(node);
      by_number_.push_back(w);
    }
  }
  prefills_.emplace(options_, prefills);
  decodes_.emplace(cost_, decodes);
  bound_.emplace(workers.slots());
  members_ = workers.members();
}

void CandidateIndex::look_at(const FleetWorker& w, Time now) {
  if (!w.prefill) {
    const uint32_t number = numbers_.at(&w);
    if (w.growth > 0)
      growing_.insert(number);
    else
      growing_.erase(number);
    if (w.draining)
      decodes_->drop(number);
    else
      decodes_->put(number, w.requests + w.others_requests, w.context_tokens + w.others_tokens,
                    room_of(w));
    return;
  }
  if (!plain(w)) return set_apart(w);
  CandidateRank rank = CandidateRank::of(w.ledger, w.requests, w.assigned);
  if (const auto until = bound_until(w, now)) {
    rank.exact = false;
    rank.behind -= w.ledger.ahead(now);  // less and less
    bound_->put(w.slot, {*until, w.slot});
  } else {
    bound_->erase(w.slot);
  }
  if (by_cache_) rank.link = w.congestion;
  if (options_.policy == "kvcache") note_links(w);
  odd_.erase(&w);
  prefills_->put(w.slot, rank);
}

void CandidateIndex::note_links(const FleetWorker& w) {
  if (w.fetches.version() == 0) return;
  auto& [version, holders] = links_[&w];
  if (version == w.fetches.version()) return;
  version = w.fetches.version();
  for (const std::string& holder : holders)
    if (const auto it = slow_readers_.find(holder); it != slow_readers_.end()) {
      it->second.erase(&w);
      if (it->second.empty()) slow_readers_.erase(it);
    }
  holders = w.fetches.holders();
  for (const std::string& holder : holders) slow_readers_[holder].insert(&w);
}

// Sets apart the workers whose fetches of the longest match are slow from each of its holders. One
// fast holder is enough, so the slow readers of a single one are all that there can be, and itself.
void CandidateIndex::set_slow_apart(const Matches& matches) {
  if (slow_readers_.empty() || matches.longest() == 0) return;
  const std::set<const FleetWorker*>* fewest = nullptr;
  const FleetWorker* holder = nullptr;
  size_t looked_at = 0;
  static const std::set<const FleetWorker*> kNobody;
  const auto look = [&](Matches::Slot slot) {
    const FleetWorker* const w = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
    if (w == nullptr || w->draining) return false;
    const auto it = slow_readers_.find(w->node);
    const auto& readers = it == slow_readers_.end() ? kNobody : it->second;
    if (fewest == nullptr || readers.size() < fewest->size()) {
      fewest = &readers;
      holder = w;
    }
    return readers.empty() || ++looked_at >= kHoldersAsked;
  };
  for (const auto& [slot, length] : matches.few)
    if (length == matches.longest() && look(slot)) break;
  if (!matches.levels.empty() && matches.levels.back().length == matches.longest() &&
      (fewest == nullptr || !fewest->empty()))
    matches.each(static_cast<int>(matches.levels.size()) - 1, look);
  if (holder == nullptr) return;
  const std::vector<const FleetWorker*> readers(fewest->begin(), fewest->end());
  for (const FleetWorker* w : readers) set_apart(*w);
  if (links_.contains(holder)) set_apart(*holder);  // it asks the others
}

void CandidateIndex::set_apart(const FleetWorker& w) {
  odd_.insert(&w);
  bound_->erase(w.slot);
  prefills_->drop(w.slot);
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
  while (!bound_->empty() && bound_->key(bound_->best()).first <= now)
    look_at(*by_slot_[bound_->best()], now);
  // Until the next pick looks at them.
  for (const FleetWorker* w : apart)
    if (w->prefill) set_apart(*w);
  set_slow_apart(matches);

  View v;
  const auto add =
      [&](const FleetWorker& w) {  // in the order of arrival `work` and priority are moot
        const auto length = matches.of(w.slot);
        const uint64_t most = ask.tokens == 0 ? 0 : (ask.tokens - 1) / ask.block_tokens;
        const uint64_t held = std::min<uint64_t>(length, most) * ask.block_tokens;
        const double work = w.ledger.overtakes() ? cost_.prefill_ms(ask.tokens, held) : 0;
        v.prefill.push_back(prefill_view(w, length, work, 0, need.prefill, now));
      };
  for (const auto& [slot, usable] : prefills_->pick(matches, ask, now, !apart.empty())) {
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
