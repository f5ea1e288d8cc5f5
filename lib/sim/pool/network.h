// Simulates a network whose NICs are the only bottleneck.
// Flows share each sender's and each receiver's NIC max-min fairly, at every instant. A sender with
// many readers is slow for all of them, as on a real network.
//
// Thread: one owner. Pure: time is an argument. Units: bytes; bytes a second of each direction.
// Cost: a change touches only the flows that share a NIC with it, directly or through others.
// Source: Bertsekas and Gallager, "Data Networks" (1992), section 6.5.2 (max-min fairness).
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/time.h"

namespace mc::sim {

class Network {
 public:
  using FlowId = uint64_t;
  Network(size_t nodes, double nic_bytes_per_s);

  void widen(size_t node, double factor);  // multiplies its NIC's rate; before any flow

  // Between two different nodes, more than 0 bytes.
  FlowId start(size_t from, size_t to, double bytes, Time now);
  std::optional<Time> deadline() const;    // when the next flow ends
  std::vector<FlowId> finished(Time now);  // in order of their end, up to now
  void cancel(FlowId flow, Time now);      // ignores unknown flows

  size_t flows() const { return flows_.size(); }
  size_t sending(size_t node) const { return out_[node].size(); }
  double sent(size_t node) const { return sent_[node]; }  // bytes of ended and cancelled flows
  double received(size_t node) const { return received_[node]; }
  // The rate of a flow now, and of all that leave or enter a node; for tests.
  double rate(FlowId flow) const { return flows_.at(flow).rate; }
  double rate_out(size_t node) const;
  double rate_in(size_t node) const;

 private:
  struct Flow {
    size_t from, to;
    double left;  // bytes, at `since`
    double rate;
    Time since, ends;
    double moved;  // bytes so far
  };
  void settle(Flow& flow, Time now) const;
  void set_rate(FlowId id, Flow& flow, double share, Time now);
  void reshare(size_t from, size_t to, Time now);  // of what leaves `from` and enters `to`
  void reshare_connected(size_t from, size_t to, Time now);
  void remove(FlowId id);

  std::vector<double> capacity_;  // by node, each way
  FlowId next_ = 1;
  std::unordered_map<FlowId, Flow> flows_;
  std::vector<std::vector<FlowId>> out_, in_;  // by node
  std::set<std::pair<Time, FlowId>> ends_;
  std::vector<double> sent_, received_;
};

}  // namespace mc::sim
