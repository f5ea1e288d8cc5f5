#include "sched/request/waiting_room.h"

#include <limits>
#include <tuple>

namespace mc::sched {

void WaitingRoom::put(uint64_t request, const Turn& turn) {
  const auto [at, fresh] = entries_.try_emplace(request);
  Entry& entry = at->second;
  if (fresh) shares_.waits(turn.tenant, turn.share);
  if (fresh || entry.place == Place::kTries) ++queued_;
  entry.turn = turn;
  entry.place = Place::kQueued;
}

void WaitingRoom::tries(uint64_t request, uint64_t round) {
  const auto at = entries_.find(request);
  if (at == entries_.end()) return;
  if (at->second.place == Place::kQueued) --queued_;
  at->second.place = Place::kTries;
  at->second.round = round;
}

void WaitingRoom::served(uint64_t request, TokenShares::Tenant tenant, uint64_t prompt_tokens) {
  const auto at = entries_.find(request);
  if (at == entries_.end()) return shares_.passed(tenant, prompt_tokens);
  if (at->second.place == Place::kQueued) --queued_;
  shares_.taken(tenant, prompt_tokens);
  entries_.erase(at);
}

void WaitingRoom::gone(uint64_t request) {
  const auto at = entries_.find(request);
  if (at == entries_.end()) return;
  if (at->second.place == Place::kQueued) --queued_;
  shares_.gave_up(at->second.turn.tenant);
  entries_.erase(at);
}

bool WaitingRoom::has(uint64_t request) const {
  const auto at = entries_.find(request);
  return at != entries_.end() && at->second.place == Place::kQueued;
}

uint64_t WaitingRoom::last_round(uint64_t request) const {
  const auto at = entries_.find(request);
  return at == entries_.end() ? 0 : at->second.round;
}

int64_t WaitingRoom::aged(const Turn& turn, Time now) const {
  const Duration waited = now - turn.since;
  if (waited >= longest_ / 2) return std::numeric_limits<int64_t>::min();
  const double share = to_seconds(waited) / to_seconds(longest_);
  return turn.priority - static_cast<int64_t>(share * static_cast<double>(kAgeSteps));
}

std::optional<uint64_t> WaitingRoom::next(Time now, uint64_t round) const {
  struct Best {
    double counter = 0;
    uint64_t id = 0;
    const Entry* entry = nullptr;
  };
  std::map<int64_t, Best> best;  // of each priority
  for (const auto& [id, entry] : entries_) {
    if (entry.place != Place::kQueued || (round != 0 && entry.round == round)) continue;
    const double counter = shares_.counter(entry.turn.tenant);
    Best& b = best[entry.turn.priority];
    if (b.entry == nullptr || std::tuple(counter, id) < std::tuple(b.counter, b.id))
      b = {counter, id, &entry};
  }
  std::optional<uint64_t> found;
  std::tuple<int64_t, double, uint64_t> least{};
  for (const auto& [priority, b] : best) {
    const std::tuple key(aged(b.entry->turn, now), b.counter, b.id);
    if (found && least <= key) continue;
    found = b.id;
    least = key;
  }
  return found;
}

}  // namespace mc::sched
