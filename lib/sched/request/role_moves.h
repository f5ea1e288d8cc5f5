// Decides which worker changes its role, and which role one that joins gets.
//
//   - One that joins goes to the side that has none, else to the busier one. Where both are equally
//     busy it goes to the smaller.
//   - A move takes the worker of the giving side that has the least to finish, never one half of a
//     process that does both. One worker moves at a time, and none that is the last of its side.
//     A move ends when the worker is on its new side, is another process, or is gone.
//   - One that leaves is of the idler side, unless that would leave none there.
//
// Workers move by draining. Its driver moves them: a live conductor by messages
// (serve/conductor/role_rebalancer.h), a simulated cluster when they have nothing left to do.
//
// Thread: one owner. Pure: time is an argument.
// Source: Mooncake paper, section 5.1 (machines that come and go).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/time.h"
#include "sched/pd_control.h"
#include "sched/request/roster.h"

namespace mc::sched {

class RoleMoves {
 public:
  static constexpr Duration kDrainMax = std::chrono::minutes(10);  // then another may move
  explicit RoleMoves(Roster& roster) : roster_(roster) {}

  // `pressure`: the busier side; kNone: both alike. Those that were given a side and have not
  // joined yet count as well.
  bool joins_prefill(PdMove pressure, size_t coming_prefill = 0, size_t coming_decode = 0) const;
  // The side that one leaves.
  bool leaves_prefill(PdMove pressure) const;
  // The worker of that side with the least to finish that does not drain. `halves`: it may be one
  // half of a process. nullptr: there is none.
  FleetWorker* least_loaded(bool prefill, bool halves, Time now) const;

  // The worker that is to drain and change sides. nullptr: none can, or one is moving.
  FleetWorker* move(PdMove where, Time now);
  bool moving(Time now);                // one is under way
  void fails(const std::string& node);  // if that one moves, it will not

 private:
  bool one_of_two(const FleetWorker& worker) const;

  Roster& roster_;
  struct Moving {
    std::string node;
    uint64_t epoch = 0;
    bool to_prefill = false;
    Time until{};
  };
  Moving moving_;  // its node empty: none
};

}  // namespace mc::sched
