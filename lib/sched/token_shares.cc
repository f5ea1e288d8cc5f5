#include "sched/token_shares.h"

#include <algorithm>

namespace mc::sched {

void TokenShares::waits(Tenant tenant, double weight) {
  Entry& entry = entries_[tenant];
  if (weight > 0) entry.weight = weight;
  if (entry.waiting++ > 0) return;
  const double floor = order_.empty() ? last_ : order_.begin()->first;
  entry.counter = std::max(entry.counter, floor);
  order_.emplace(entry.counter, tenant);
}

std::optional<TokenShares::Tenant> TokenShares::next() const {
  if (order_.empty()) return std::nullopt;
  return order_.begin()->second;
}

void TokenShares::taken(Tenant tenant, uint64_t prompt_tokens) {
  Entry& entry = entries_[tenant];
  add(tenant, entry, options_.input * static_cast<double>(prompt_tokens));
  leave(tenant, entry);
}

void TokenShares::gave_up(Tenant tenant) { leave(tenant, entries_[tenant]); }

void TokenShares::passed(Tenant tenant, uint64_t prompt_tokens) {
  add(tenant, entries_[tenant], options_.input * static_cast<double>(prompt_tokens));
}

void TokenShares::generated(Tenant tenant, uint64_t tokens) {
  add(tenant, entries_[tenant], options_.output * static_cast<double>(tokens));
}

double TokenShares::counter(Tenant tenant) const {
  const auto it = entries_.find(tenant);
  return it == entries_.end() ? 0 : it->second.counter;
}

size_t TokenShares::waiting(Tenant tenant) const {
  const auto it = entries_.find(tenant);
  return it == entries_.end() ? 0 : it->second.waiting;
}

void TokenShares::leave(Tenant tenant, Entry& entry) {
  if (entry.waiting == 0 || --entry.waiting > 0) return;
  order_.erase({entry.counter, tenant});
  last_ = entry.counter;
}

void TokenShares::add(Tenant tenant, Entry& entry, double tokens) {
  if (entry.waiting > 0) order_.erase({entry.counter, tenant});
  entry.counter += tokens / entry.weight;
  if (entry.waiting > 0) order_.emplace(entry.counter, tenant);
}

}  // namespace mc::sched
