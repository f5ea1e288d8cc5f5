// Holds the KV store's pool of a simulated cluster: the live master's own tables, leases and
// eviction (store::Master), and the conductor's view of it (sched::PoolIndex).
// Each machine that offers memory is a node of the store. It carries out the master's orders at
// once, and the view hears of each change at once.
//
// Thread: one owner. Pure: time is an argument.
// Source: Mooncake, section 3.2.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "sched/pool/pool_index.h"
#include "store/master/master.h"
#include "trace/records/records.h"

namespace mc::sim {

class Pool {
 public:
  explicit Pool(Time now);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void mount(uint32_t machine, uint64_t blocks, Time now);  // empty memory for so many
  void unmount(uint32_t machine, Time now);                 // with what lies there
  bool mounted(uint32_t machine) const { return nodes_.contains(machine); }

  const sched::PoolIndex& index() const { return index_; }
  uint64_t blocks() const { return index_.blocks(); }
  uint64_t evicted() const { return master_.totals().evicted_objects; }

  // The machines that have the leading blocks of these, which are leased to the reader.
  std::vector<uint32_t> find(std::span<const BlockHash> hashes, Time now);

  struct Grant {  // of a block: where to write it
    store::PutClaim claim;
    uint32_t machine = 0;
  };
  struct Granted {  // of a put: those of its blocks that the pool lacks and takes
    uint64_t put = 0;
    std::vector<Grant> grants;
  };
  // Asks for room; the answer is among granted(), now or when room was made.
  void put(uint64_t put, std::span<const BlockHash> hashes, trace::CacheClass of, Time now);
  std::vector<Granted> granted() { return std::exchange(granted_, {}); }  // since the last call
  void stored(const std::vector<Grant>& grants, Time now);                // they are written
  void given_up(const std::vector<Grant>& grants, Time now);              // and never will be

  Time deadline() const { return master_.deadline(); }
  void tick(Time now);

 private:
  struct Node {
    Generation generation;
    uint64_t done = 0;  // the last of its orders
    std::optional<store::HeartbeatReply> reply;
  };
  void beat(uint32_t machine, Time now);
  void settle(Time now);
  void note(const store::Event& event);

  store::Master master_;
  uint64_t mounts_ = 0, seen_ = 1;  // seen: the next event
  std::map<uint32_t, Node> nodes_;
  sched::PoolIndex index_;
  std::vector<Granted> granted_;
};

}  // namespace mc::sim
