// Lets simulated nodes offer memory to the KV store's pool, put blocks into it and read prefixes
// from it. A prompt reads when its turn has come, behind the blocks that are there already.
//
//   mount -> (put, read -> ended) -> unmount
//
// Without a pool every call does nothing.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sched/cost.h"
#include "sim/pool/pool_traffic.h"

namespace mc::sim {

struct PoolRead {               // of an attempt of a request
  uint64_t first = 0, end = 0;  // blocks
  uint64_t tokens = 0;          // that came
  Time begun{};
  Duration took{0};
};

class NodePool {
 public:
  struct Options {
    uint64_t tokens = 0;         // of KV that a machine offers; 0: there is no pool
    std::string reuse = "auto";  // always, never
    uint64_t block_tokens = 0, block_bytes = 0;
    double memory_bytes_per_s = 0;
    uint64_t groups = 0, group = 1;  // so many first nodes are as many machines each
  };
  // `cost` and `network` outlive this. Time begins at 0.
  NodePool(Options options, const sched::Cost& cost, Network& network);

  const PoolTraffic* traffic() const { return traffic_ ? &*traffic_ : nullptr; }
  const sched::PoolIndex* index() const { return traffic_ ? &traffic_->pool().index() : nullptr; }
  sched::PoolUse use() const;  // of each prefill node
  void mount(uint32_t node, Time now);
  void unmount(uint32_t node, Time now);

  struct Prompt {
    uint32_t request = 0, node = 0;
    uint64_t tokens = 0;
    const std::vector<BlockHash>& hashes;
  };
  // Reads the blocks behind the first `here` that are worth it, by what the conductor has learned.
  // False: none are. An attempt asks once.
  bool read(const Prompt& prompt, uint64_t here, PoolRead& read, Time now);
  void cancel(uint32_t request, Time now);
  std::vector<PoolTraffic::Read> ended();  // since the last call
  // Puts the blocks from `first` on.
  void put(const Prompt& prompt, uint64_t first, trace::CacheClass of, Time now);
  bool arrived(Network::FlowId flow, Time now) { return traffic_ && traffic_->arrived(flow, now); }

  struct Wake {
    Time at{};
    uint64_t number = 0;
  };
  std::optional<Wake> wake(Time now);    // an event to plan, in place of earlier ones
  bool tick(uint64_t number, Time now);  // false: another took its place

 private:
  uint64_t worth(const Prompt& prompt, uint64_t here, uint64_t most) const;

  const Options o_;
  const sched::Cost& cost_;
  std::optional<PoolTraffic> traffic_;
  Wake next_{Time::max(), 0};
  Time ticked_{};
};

}  // namespace mc::sim
