// Gives events to a RequestMachine, and its actions to a driver, one after another.
// An action may lead to further events: they wait until all actions before them are carried out, so
// that nothing happens in the midst of something else.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "sched/request/request_machine.h"

namespace mc::sim {

// Hears every event of a machine (nullptr: a tick), and the actions that it gave.
using MachineWatch =
    std::function<void(const sched::RequestEvent*, Time, const std::vector<sched::RequestAction>&)>;

class MachineInbox {
 public:
  MachineInbox(sched::RequestMachine& machine, const MachineWatch& watch,
               std::function<void(const sched::RequestAction&)> carry_out)
      : machine_(machine), watch_(watch), carry_out_(std::move(carry_out)) {}

  void put(sched::RequestEvent event, Time now) {
    events_.push_back(std::move(event));
    if (!busy_) work(now);
  }
  void tick(Time now) {  // not while an action is carried out
    machine_.tick(now, actions_);
    if (watch_) watch_(nullptr, now, actions_);
    work(now);
  }

 private:
  void work(Time now) {
    busy_ = true;
    for (;;) {
      for (const sched::RequestAction& action : actions_) carry_out_(action);
      actions_.clear();
      if (events_.empty()) break;
      const sched::RequestEvent event = std::move(events_.front());
      events_.pop_front();
      machine_.handle(event, now, actions_);
      if (watch_) watch_(&event, now, actions_);
    }
    busy_ = false;
  }

  sched::RequestMachine& machine_;
  const MachineWatch& watch_;
  const std::function<void(const sched::RequestAction&)> carry_out_;
  std::deque<sched::RequestEvent> events_;
  std::vector<sched::RequestAction> actions_;
  bool busy_ = false;
};

}  // namespace mc::sim
