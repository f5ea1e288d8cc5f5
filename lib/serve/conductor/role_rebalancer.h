// Applies scaling decisions: gives idle workers a role, moves workers between roles, drains them.
// sched::RoleMoves says which worker, and which role; this tells the worker. One of the role auto
// waits for one; a dismissed worker drains and ends. The rebalancer remembers only what is under
// way. Several conductors may rebalance the same workers: a worker obeys the first.
//
// Thread: the loop's. Source: Mooncake paper, section 5.1 (machines that come and go).
#pragma once
#include <map>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "io/loop.h"
#include "sched/pd_control.h"
#include "sched/request/role_moves.h"
#include "serve/conductor/pd_autoscaler.h"
#include "serve/conductor/worker_registry.h"

namespace mc::serve {

class RoleRebalancer {
 public:
  static constexpr Duration kPatience = std::chrono::seconds(5);  // for an answer, or a join
  RoleRebalancer(io::Loop& loop, WorkerRegistry& workers, Metrics& metrics);
  RoleRebalancer(const RoleRebalancer&) = delete;
  RoleRebalancer& operator=(const RoleRebalancer&) = delete;

  // Gives a worker of the role auto a side. `pressure`: the busier side; kNone: both alike.
  void joined(const Heartbeat& beat, sched::PdMove pressure, Time now);
  // Starts a move. Returns: the worker's name; empty when none can move.
  std::string move(sched::PdMove where, const std::string& why, Time now);
  bool moving(Time now) { return moves_.moving(now); }  // one is under way

  struct Dismissed {
    std::string node, role;
  };
  // `node` and `role` may be empty: the idler side (`pressure`: where workers are missed least) and
  // its least loaded worker. Errors: kNotFound; kBusy when its side would have none left.
  Result<Dismissed> dismiss(const std::string& node, const std::string& role,
                            sched::PdMove pressure, Time now);

 private:
  struct Placing {
    bool prefill = false;
    Time until{};
  };
  bool decide_side(sched::PdMove pressure) const;  // of one that joins: prefill
  void send(rpc::Client& client, const NodeId& node, const SetRole& m);

  io::Loop& loop_;
  WorkerRegistry& workers_;
  Metrics& metrics_;
  std::map<NodeId, Placing> placing_;                          // given a side, not joined yet
  std::map<std::string, std::unique_ptr<rpc::Client>> autos_;  // by control address
  sched::RoleMoves moves_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace mc::serve
