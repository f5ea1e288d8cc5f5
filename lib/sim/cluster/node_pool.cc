#include "sim/cluster/node_pool.h"

#include <algorithm>

#include "sched/pool_plan.h"
#include "serve/kvcache/block_manager.h"

namespace mc::sim {
namespace {

constexpr Duration kPeriod = std::chrono::milliseconds(1);  // between two ticks, at least

}  // namespace

NodePool::NodePool(Options options, const sched::Cost& cost, Network& network)
    : o_(std::move(options)), cost_(cost) {
  if (o_.tokens > 0)
    traffic_.emplace(PoolTraffic::Options{o_.block_bytes, o_.memory_bytes_per_s}, network, Time{});
}

sched::PoolUse NodePool::use() const {
  if (!traffic_ || o_.reuse == "never") return sched::PoolUse::kNever;
  return o_.reuse == "auto" ? sched::PoolUse::kAuto : sched::PoolUse::kAlways;
}

void NodePool::mount(uint32_t node, Time now) {
  const uint64_t machines = node < o_.groups ? o_.group : 1;
  if (traffic_) traffic_->mount(node, o_.tokens * machines / o_.block_tokens, now);
}

void NodePool::unmount(uint32_t node, Time now) {
  if (traffic_) traffic_->unmount(node, now);
}

uint64_t NodePool::worth(const Prompt& prompt, uint64_t here, uint64_t most) const {
  std::vector<uint64_t> tags;
  for (uint64_t i = 0; i < most; ++i) tags.push_back(prompt.hashes[i].tag());
  const sched::PoolMatch match = index()->match(tags, here);
  const sched::PoolPlan plan(match, prompt.tokens, o_.block_tokens, cost_);
  return (use() == sched::PoolUse::kAlways ? plan.whole(here) : plan.best(here)).blocks;
}

bool NodePool::read(const Prompt& prompt, uint64_t here, PoolRead& read, Time now) {
  if (use() == sched::PoolUse::kNever) return false;
  const uint64_t most = std::min<uint64_t>(prompt.hashes.size(),
                                           serve::reusable_blocks(prompt.tokens, o_.block_tokens));
  if (here >= most) return false;
  const std::span<const BlockHash> all = prompt.hashes;
  std::vector<uint32_t> holders = traffic_->find(all.subspan(here, most - here), now);
  holders.resize(std::min<uint64_t>(holders.size(), worth(prompt, here, most)));
  if (holders.empty()) return false;
  read.begun = now;
  read.first = here;
  read.end = here + holders.size();
  traffic_->read(prompt.request, prompt.node, holders, now);
  return true;
}

void NodePool::cancel(uint32_t request, Time now) {
  if (traffic_) traffic_->cancel(request, now);
}

std::vector<PoolTraffic::Read> NodePool::ended() {
  return traffic_ ? traffic_->ended() : std::vector<PoolTraffic::Read>{};
}

void NodePool::put(const Prompt& prompt, uint64_t first, trace::CacheClass of, Time now) {
  if (!traffic_ || first >= prompt.hashes.size()) return;
  traffic_->put(prompt.node, std::span(prompt.hashes).subspan(first), of, now);
}

std::optional<NodePool::Wake> NodePool::wake(Time now) {
  if (!traffic_) return std::nullopt;
  const Time at = std::max({traffic_->deadline(), ticked_ + kPeriod, now});
  if (at >= next_.at) return std::nullopt;
  return next_ = {at, next_.number + 1};
}

bool NodePool::tick(uint64_t number, Time now) {
  if (number != next_.number) return false;
  next_.at = Time::max();
  ticked_ = now;
  traffic_->tick(now);
  return true;
}

}  // namespace mc::sim
