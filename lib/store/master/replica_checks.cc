#include "store/master/replica_checks.h"

#include <algorithm>

namespace mc::store {
namespace {
constexpr uint64_t kCheckBit = uint64_t{1} << 63;
constexpr Duration kAnswer = std::chrono::seconds(60);  // a node that has not answered by then
constexpr Duration kAgain = std::chrono::seconds(1);
constexpr Duration kBurst = std::chrono::seconds(1);
constexpr Duration kEach = std::chrono::milliseconds(10);
constexpr uint64_t kBytesPerMs = 1 * kMiB;  // a core hashes ten times as much
}  // namespace

void ReplicaChecks::expire(Time now) {
  while (!checks_.empty() && checks_.begin()->second.until <= now) {
    const ReplicaCheck& check = checks_.begin()->second.check;
    by_replica_.erase({check.mount, check.generation});
    checks_.erase(checks_.begin());
  }
}

uint64_t ReplicaChecks::begin(ReplicaCheck check, uint64_t bytes, Time& paid, Time now) {
  expire(now);
  const Key replica{check.mount, check.generation};
  if (const auto known = by_replica_.find(replica); known != by_replica_.end()) {
    if (checks_.at(known->second).until > now) return 0;
    checks_.erase(known->second);
    by_replica_.erase(known);
  }
  if (checks_.size() >= kMost || paid > now + kBurst) return 0;
  paid = std::max(paid, now) + kEach + std::chrono::milliseconds(bytes / kBytesPerMs);
  const uint64_t task = kCheckBit | next_++;
  by_replica_.emplace(replica, task);
  checks_.emplace(task, Entry{std::move(check), true, now + kAnswer});
  return task;
}

std::optional<ReplicaCheck> ReplicaChecks::end(uint64_t task, uint64_t mount, Time now) {
  const auto it = checks_.find(task);
  if (it == checks_.end() || !it->second.open || it->second.check.mount != mount)
    return std::nullopt;
  it->second.open = false;
  it->second.until = now + kAgain;
  return it->second.check;
}

}  // namespace mc::store
