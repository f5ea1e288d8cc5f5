#include "sched/token_shares.h"

#include <algorithm>

namespace mc::sched {

void TokenShares::waits(Tenant tenant, double weight) {
  Entry& entry = entries_[tenant];
  if (weight > 0) entry.weight = weight;
  if (entry.waiting++ > 0) return;
  entry.counter = std::max(entry.counter, floor());
  order_.emplace(entry.counter, tenant);
}

double TokenShares::floor() const { return order_.empty() ? last_ : order_.begin()->first; }

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

// As one that waits for no time: its tenant begins where those are that wait, and a tenant that
// waits after it begins where it is.
void TokenShares::passed(Tenant tenant, uint64_t prompt_tokens) {
  Entry& entry = entries_[tenant];
  if (entry.waiting == 0) entry.counter = std::max(entry.counter, floor());
  add(tenant, entry, options_.input * static_cast<double>(prompt_tokens));
  if (order_.empty()) last_ = std::max(last_, entry.counter);
}

void TokenShares::generated(Tenant tenant, uint64_t tokens) {
  Entry& entry = entries_[tenant];
  add(tenant, entry, options_.output * static_cast<double>(tokens));
  if (order_.empty()) last_ = std::max(last_, entry.counter);
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
