#include "p2p/swarm/swarm.h"

#include <algorithm>

namespace mc::p2p {

size_t Uplink::busy(Time now) {
  std::erase_if(uploads_, [&](const auto& u) { return u.second <= now; });
  return uploads_.size();
}

Result<uint32_t> Uplink::grant(const ShardSet& mine, const ShardSet& wanted,
                               const std::string& asker, Time now) {
  if (busy(now) >= config_.slots)
    return fail(Code::kBusy, "all %u upload slots are taken", config_.slots);
  std::vector<uint32_t> least;
  uint32_t fewest = UINT32_MAX;
  for (uint32_t i = 0; i < granted_.size(); ++i) {
    if (!mine.has(i) || !wanted.has(i) || granted_[i] > fewest) continue;
    if (granted_[i] < fewest) least.clear();
    fewest = granted_[i];
    least.push_back(i);
  }
  if (least.empty()) return fail(Code::kNotFound, "nothing here that is wanted");
  const uint32_t shard = least[random_.below(least.size())];
  ++granted_[shard];
  uploads_[{asker, shard}] = now + config_.slot_max;
  return shard;
}

void Uplink::released(uint32_t shard, const std::string& asker) { uploads_.erase({asker, shard}); }

void Sources::learn(const std::string& address) {
  if (address != self_ && !address.empty()) sources_.try_emplace(address);
}

std::optional<std::string> Sources::next(Time now) {
  std::vector<const std::string*> best;
  std::pair<uint32_t, uint64_t> least{UINT32_MAX, UINT64_MAX};
  for (const auto& [address, s] : sources_) {
    if (s.in_flight >= config_.per_source || s.paused_until > now) continue;
    const std::pair<uint32_t, uint64_t> load{s.in_flight, s.given};
    if (load > least) continue;
    if (load < least) best.clear();
    least = load;
    best.push_back(&address);
  }
  if (best.empty()) return std::nullopt;
  const std::string chosen = *best[random_.below(best.size())];
  ++sources_[chosen].in_flight;
  return chosen;
}

void Sources::back(const std::string& address, Time until) {
  auto it = sources_.find(address);
  if (it == sources_.end()) return;
  if (it->second.in_flight > 0) --it->second.in_flight;
  it->second.paused_until = std::max(it->second.paused_until, until);
}

void Sources::gave(const std::string& address, Time now) {
  back(address, now);
  if (auto it = sources_.find(address); it != sources_.end()) {
    it->second.failures = 0;
    ++it->second.given;
  }
}

void Sources::refused(const std::string& address, bool empty, Time now) {
  back(address, now + (empty ? config_.empty_pause : config_.busy_pause));
  if (auto it = sources_.find(address); it != sources_.end()) it->second.failures = 0;
}

void Sources::failed(const std::string& address, Time now) {
  back(address, now + config_.failed_pause);
  auto it = sources_.find(address);
  if (it == sources_.end()) return;
  const uint32_t most = it->second.given > 0 ? config_.failures_max : config_.unproven_failures_max;
  if (++it->second.failures >= most) sources_.erase(it);
}

Time Sources::wakes() const {
  Time soonest = Time::max();
  for (const auto& [address, s] : sources_)
    if (s.in_flight < config_.per_source) soonest = std::min(soonest, s.paused_until);
  return soonest;
}

std::vector<std::string> Sources::known() const {
  std::vector<std::string> out;
  for (const auto& [address, s] : sources_) out.push_back(address);
  return out;
}

}  // namespace mc::p2p
