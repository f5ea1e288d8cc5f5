#include "sched/request/waiting_room.h"

#include <limits>
#include <utility>

namespace mc::sched {

void WaitingRoom::Lines::insert(uint64_t request, const Turn& turn, double counter) {
  Line& line = by_priority_[turn.priority];
  OfTenant& own = line.tenants[turn.tenant];
  if (!own.requests.empty()) line.order.erase({own.counter, *own.requests.begin(), turn.tenant});
  own.counter = counter;
  own.requests.insert(request);
  line.order.emplace(counter, *own.requests.begin(), turn.tenant);
}

void WaitingRoom::Lines::erase(uint64_t request, const Turn& turn) {
  const auto line = by_priority_.find(turn.priority);
  if (line == by_priority_.end()) return;
  const auto own = line->second.tenants.find(turn.tenant);
  if (own == line->second.tenants.end() || !own->second.requests.contains(request)) return;
  auto& [counter, requests] = own->second;
  line->second.order.erase({counter, *requests.begin(), turn.tenant});
  requests.erase(request);
  if (!requests.empty())
    line->second.order.emplace(counter, *requests.begin(), turn.tenant);
  else
    line->second.tenants.erase(own);
  if (line->second.tenants.empty()) by_priority_.erase(line);
}

void WaitingRoom::Lines::moved(TokenShares::Tenant tenant, double counter) {
  for (auto& [priority, line] : by_priority_) {
    const auto own = line.tenants.find(tenant);
    if (own == line.tenants.end() || own->second.counter == counter) continue;
    const uint64_t first = *own->second.requests.begin();
    line.order.erase({own->second.counter, first, tenant});
    line.order.emplace(own->second.counter = counter, first, tenant);
  }
}

void WaitingRoom::enter(uint64_t request, const Entry& entry) {
  ++queued_;
  const double counter = shares_.counter(entry.turn.tenant);
  all_.insert(request, entry.turn, counter);
  if (entry.round == 0 || entry.round != round_)
    fresh_.insert(request, entry.turn, counter);
  else
    tried_.push_back(request);
}

void WaitingRoom::leave(uint64_t request, const Entry& entry) {
  if (entry.place != Place::kQueued) return;
  --queued_;
  all_.erase(request, entry.turn);
  fresh_.erase(request, entry.turn);
}

void WaitingRoom::put(uint64_t request, const Turn& turn) {
  const auto [at, fresh] = entries_.try_emplace(request);
  Entry& entry = at->second;
  if (fresh)
    shares_.waits(turn.tenant, turn.share);
  else
    leave(request, entry);
  entry.turn = turn;
  entry.place = Place::kQueued;
  enter(request, entry);
}

void WaitingRoom::tries(uint64_t request, uint64_t round) {
  if (round > round_) {
    round_ = round;
    for (const uint64_t id : std::exchange(tried_, {})) {
      const auto it = entries_.find(id);
      if (it == entries_.end() || it->second.place != Place::kQueued) continue;
      fresh_.insert(id, it->second.turn, shares_.counter(it->second.turn.tenant));
    }
  }
  const auto at = entries_.find(request);
  if (at == entries_.end()) return;
  leave(request, at->second);
  at->second.place = Place::kTries;
  at->second.round = round;
}

void WaitingRoom::served(uint64_t request, TokenShares::Tenant tenant, uint64_t prompt_tokens) {
  const auto at = entries_.find(request);
  if (at == entries_.end()) {
    shares_.passed(tenant, prompt_tokens);
  } else {
    leave(request, at->second);
    shares_.taken(tenant, prompt_tokens);
    entries_.erase(at);
  }
  served_to(tenant);
}

void WaitingRoom::gone(uint64_t request) {
  const auto at = entries_.find(request);
  if (at == entries_.end()) return;
  leave(request, at->second);
  shares_.gave_up(at->second.turn.tenant);
  entries_.erase(at);
}

void WaitingRoom::generated(TokenShares::Tenant tenant, uint64_t tokens) {
  if (tokens == 0) return;
  shares_.generated(tenant, tokens);
  served_to(tenant);
}

void WaitingRoom::served_to(TokenShares::Tenant tenant) {
  if (shares_.waiting(tenant) == 0) return;
  const double counter = shares_.counter(tenant);
  all_.moved(tenant, counter);
  fresh_.moved(tenant, counter);
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
  std::optional<uint64_t> found;
  std::tuple<int64_t, double, uint64_t> least{};
  const Lines& lines = round != 0 && round == round_ ? fresh_ : all_;
  lines.each_first([&](double counter, uint64_t id) {
    const std::tuple key(aged(entries_.at(id).turn, now), counter, id);
    if (found && least <= key) return;
    found = id;
    least = key;
  });
  return found;
}

}  // namespace mc::sched
