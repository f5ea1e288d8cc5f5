// Moves KV blocks between the machines of a simulated cluster and its pool, over their NICs.
// A read takes the blocks from all machines that have them at once, and a round trip; what the
// reader's own machine has comes at the rate of its memory. Puts are in a queue for each machine,
// as of serve::StoreConnector: so many blocks a call, so many calls at a time.
//
// Racks are not looked at.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "sim/pool/network.h"
#include "sim/pool/pool.h"

namespace mc::sim {

class PoolTraffic {
 public:
  struct Options {
    uint64_t block_bytes = 0;
    double memory_bytes_per_s = 0;  // of a copy within a machine
  };
  struct Totals {
    uint64_t reads = 0, dropped = 0;  // dropped: blocks that were not put, as the queue was full
    double read_bytes = 0, put_bytes = 0;
  };
  // `network` outlives this; its nodes are the machines.
  PoolTraffic(const Options& options, Network& network, Time now);

  const Pool& pool() const { return pool_; }
  const Totals& totals() const { return totals_; }
  void mount(uint32_t machine, uint64_t blocks, Time now);
  void unmount(uint32_t machine, Time now);  // what moves from or to it ends

  // The machines that have the leading blocks of these, for a read that begins now.
  std::vector<uint32_t> find(std::span<const BlockHash> hashes, Time now);
  // Requires: no other read of the request, and at least one block.
  void read(uint32_t request, uint32_t machine, std::span<const uint32_t> holders, Time now);
  void cancel(uint32_t request, Time now);
  struct Read {
    uint32_t request = 0;
    bool whole = false;  // false: a machine that had some of it is gone
  };
  std::vector<Read> ended() { return std::exchange(ended_, {}); }  // since the last call

  void put(uint32_t machine, std::span<const BlockHash> hashes, trace::CacheClass of, Time now);

  // The flow ended. False: it is not one of these.
  bool arrived(Network::FlowId flow, Time now);
  bool busy() const { return !reads_.empty() || !calls_.empty(); }
  Time deadline() const;
  void tick(Time now);

 private:
  struct Flow {
    uint32_t from = 0, to = 0;
    uint64_t put = 0;                   // of a put; 0: of a read
    uint32_t request = 0;               // of a read
    std::vector<Pool::Grant> grants{};  // what a put writes
  };
  struct Reading {
    uint32_t machine = 0;
    size_t flows = 0;
    bool timed = true;  // its round trip, or what comes from its own machine, is not over
    Time until{};
  };
  struct Want {
    BlockHash hash;
    trace::CacheClass of;
  };
  struct Call {
    uint32_t machine = 0;
    size_t flows = 0;
  };
  void part_came(uint32_t request);
  void end_read(uint32_t request, bool whole, Time now);
  void put_next(uint32_t machine, Time now);
  void write(Time now);
  void begin(const Pool::Granted& granted, Time now);
  void wrote(uint64_t put, Time now);
  void stop(Network::FlowId flow, Time now);

  const Options o_;
  Network& network_;
  Pool pool_;
  Totals totals_;
  std::map<Network::FlowId, Flow> flows_;
  std::map<uint32_t, Reading> reads_;           // by request
  std::set<std::pair<Time, uint32_t>> timers_;  // of reads
  std::vector<Read> ended_;
  std::map<uint32_t, std::deque<Want>> queues_;  // of puts, by machine
  std::map<uint64_t, Call> calls_;
  std::map<uint32_t, size_t> calling_;  // calls of a machine
  uint64_t puts_ = 0;
};

}  // namespace mc::sim
