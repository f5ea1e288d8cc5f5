#include "sim/pool/pool_traffic.h"

#include <algorithm>

#include "sched/cost.h"

namespace mc::sim {
namespace {

// Those of serve/connector/store_connector.cc.
constexpr size_t kBlocksPerPut = 32, kCallsMax = 2, kQueueMax = 16384;

}  // namespace

PoolTraffic::PoolTraffic(const Options& options, Network& network, Time now)
    : o_(options), network_(network), pool_(now) {}

void PoolTraffic::mount(uint32_t machine, uint64_t blocks, Time now) {
  pool_.mount(machine, blocks, now);
  write(now);
}

void PoolTraffic::unmount(uint32_t machine, Time now) {
  queues_.erase(machine);
  std::vector<uint32_t> readers;
  for (const auto& [request, reading] : reads_)
    if (reading.machine == machine) readers.push_back(request);
  for (const uint32_t request : readers) cancel(request, now);
  std::vector<Network::FlowId> stopped;
  for (const auto& [id, flow] : flows_)
    if (flow.from == machine || flow.to == machine) stopped.push_back(id);
  pool_.unmount(machine, now);  // first: the end of a put begins the next
  for (const Network::FlowId id : stopped) stop(id, now);
  write(now);
}

// The flow's other end learns that it ended.
void PoolTraffic::stop(Network::FlowId id, Time now) {
  const auto it = flows_.find(id);
  if (it == flows_.end()) return;  // with another flow of its read
  const Flow flow = std::move(it->second);
  flows_.erase(it);
  network_.cancel(id, now);
  if (flow.put == 0) return end_read(flow.request, false, now);
  pool_.given_up(flow.grants, now);
  wrote(flow.put, now);
}

// ---- reads

std::vector<uint32_t> PoolTraffic::find(std::span<const BlockHash> hashes, Time now) {
  std::vector<uint32_t> holders = pool_.find(hashes, now);
  write(now);
  return holders;
}

void PoolTraffic::read(uint32_t request, uint32_t machine, std::span<const uint32_t> holders,
                       Time now) {
  std::map<uint32_t, double> bytes;  // by holder
  for (const uint32_t holder : holders) bytes[holder] += static_cast<double>(o_.block_bytes);
  MC_CHECK(!bytes.empty() && !reads_.contains(request));
  Reading& reading = reads_[request];
  reading.machine = machine;
  reading.until = now + from_seconds(sched::Cost::kPoolRoundTripMs / 1e3);
  ++totals_.reads;
  for (const auto& [holder, n] : bytes) {
    totals_.read_bytes += n;
    if (holder == machine) {
      reading.until += from_seconds(n / o_.memory_bytes_per_s);
      continue;
    }
    flows_[network_.start(holder, machine, n, now)] = {
        .from = holder, .to = machine, .request = request};
    ++reading.flows;
  }
  timers_.insert({reading.until, request});
}

void PoolTraffic::part_came(uint32_t request) {
  const Reading& reading = reads_.at(request);
  if (reading.timed || reading.flows > 0) return;
  reads_.erase(request);
  ended_.push_back({request, true});
}

void PoolTraffic::cancel(uint32_t request, Time now) {
  if (!reads_.contains(request)) return;
  end_read(request, false, now);
  ended_.pop_back();
}

void PoolTraffic::end_read(uint32_t request, bool whole, Time now) {
  const Reading reading = reads_.at(request);
  reads_.erase(request);
  if (reading.timed) timers_.erase({reading.until, request});
  for (auto it = flows_.begin(); it != flows_.end();) {
    const bool its = it->second.put == 0 && it->second.request == request;
    if (its) network_.cancel(it->first, now);
    it = its ? flows_.erase(it) : std::next(it);
  }
  ended_.push_back({request, whole});
}

// ---- puts

void PoolTraffic::put(uint32_t machine, std::span<const BlockHash> hashes, trace::CacheClass of,
                      Time now) {
  std::deque<Want>& queue = queues_[machine];
  for (const BlockHash& h : hashes) {
    if (queue.size() >= kQueueMax)
      ++totals_.dropped;
    else
      queue.push_back({h, of});
  }
  put_next(machine, now);
}

// Blocks of one call have one class.
void PoolTraffic::put_next(uint32_t machine, Time now) {
  const auto it = queues_.find(machine);
  while (it != queues_.end() && !it->second.empty() && calling_[machine] < kCallsMax) {
    std::deque<Want>& queue = it->second;
    const trace::CacheClass of = queue.front().of;
    std::vector<BlockHash> blocks;
    while (!queue.empty() && queue.front().of == of && blocks.size() < kBlocksPerPut) {
      blocks.push_back(queue.front().hash);
      queue.pop_front();
    }
    ++calling_[machine];
    calls_[++puts_] = {machine, 0};
    pool_.put(puts_, blocks, of, now);
    write(now);
  }
}

// Begins all that the pool has granted since. What is stored meanwhile may make room for more.
void PoolTraffic::write(Time now) {
  for (auto granted = pool_.granted(); !granted.empty(); granted = pool_.granted())
    for (const Pool::Granted& put : granted) begin(put, now);
}

void PoolTraffic::begin(const Pool::Granted& granted, Time now) {
  const uint32_t from = calls_.at(granted.put).machine;
  std::map<uint32_t, std::vector<Pool::Grant>> to;
  if (pool_.mounted(from))  // else it is gone, and the master waits for it in vain
    for (const Pool::Grant& g : granted.grants) to[g.machine].push_back(g);
  for (auto& [machine, grants] : to) {
    const double bytes = static_cast<double>(grants.size() * o_.block_bytes);
    totals_.put_bytes += bytes;
    if (machine == from) {
      pool_.stored(grants, now);
      continue;
    }
    ++calls_.at(granted.put).flows;
    flows_[network_.start(from, machine, bytes, now)] = {
        .from = from, .to = machine, .put = granted.put, .grants = std::move(grants)};
  }
  if (calls_.at(granted.put).flows > 0) return;
  ++calls_.at(granted.put).flows;
  wrote(granted.put, now);
}

void PoolTraffic::wrote(uint64_t put, Time now) {
  Call& call = calls_.at(put);
  if (--call.flows > 0) return;
  const uint32_t machine = call.machine;
  calls_.erase(put);
  --calling_[machine];
  put_next(machine, now);
}

// ---- time

bool PoolTraffic::arrived(Network::FlowId id, Time now) {
  const auto it = flows_.find(id);
  if (it == flows_.end()) return false;
  const Flow flow = std::move(it->second);
  flows_.erase(it);
  if (flow.put == 0) {
    --reads_.at(flow.request).flows;
    part_came(flow.request);
    return true;
  }
  pool_.stored(flow.grants, now);
  wrote(flow.put, now);
  write(now);
  return true;
}

Time PoolTraffic::deadline() const {
  const Time pool = pool_.deadline();
  return timers_.empty() ? pool : std::min(pool, timers_.begin()->first);
}

void PoolTraffic::tick(Time now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const uint32_t request = timers_.begin()->second;
    timers_.erase(timers_.begin());
    reads_.at(request).timed = false;
    part_came(request);
  }
  if (pool_.deadline() > now) return;
  pool_.tick(now);
  write(now);
}

}  // namespace mc::sim
