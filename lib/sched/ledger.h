// Tracks the work that is queued on one prefill node, as the conductor knows it.
//
// A request is charged when it is sent there. The elapsed part of the running job is subtracted.
// The node's own answers correct the sum: each speaks of the jobs that were sent there before the
// one that it answers. The node tells what other conductors gave it to do, too: that goes before
// the first job here. One job runs at a time, to its end, unless the node chooses anew after each
// chunk. The next is the one that the node takes (sched/prefill_order.h); a new job waits only for
// those that go before it, and for a chunk of the one that runs.
//
// Thread: one owner. Pure: time is an argument. Source: Mooncake paper section 4.1.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>

#include "base/time.h"
#include "sched/prefill_order.h"

namespace mc::sched {

class Ledger {  // of one node
 public:
  void set_order(const PrefillOrder& order) { order_ = order; }
  void charge(uint64_t job, double ms, uint64_t tokens, Time now, int64_t priority = 0);
  // It is on its way to the node. Others that were charged earlier may be sent later.
  void sent(uint64_t job);
  // Nobody tells of its end: pass() takes it to end as predicted.
  void silent(uint64_t job);
  void pass(Time now);
  // Removes a job at any place in the queue. Ignores unknown jobs.
  void finish(uint64_t job, Time now);
  // Takes the node's answer: the jobs before `job` that were sent earlier take `ms` from now on; of
  // a job that was never sent, all before it.
  void correct(uint64_t job, double ms, Time now);

  // Takes what the node tells: others' jobs take `ms` from now on.
  void tell_others(double ms, Time now);

  double wait_ms(Time now) const;  // until a job charged now would start, if it came last
  // The same for a job of that length and priority.
  double wait_ms(Time now, double ms, int64_t priority) const;
  // What that is made of, what the node answered aside: the first job's end, and all behind it.
  Time first_ends() const {
    const Time own = jobs_.empty() ? Time{} : started_ + jobs_.front().length;
    return others_.count() == 0 ? own : std::max(own, told_) + others_;
  }
  Duration behind() const { return behind_; }
  uint64_t tokens() const { return tokens_; }
  // Jobs may go before those that came first.
  bool overtakes() const { return order_.srpf || prioritized_ > 0; }
  bool corrected(Time now) const {
    return correction_.count() != 0 && correction(now).count() != 0;
  }
  Time corrected_until() const { return corrected_ + abs(correction_); }
  // By its own answer, the node is so much further than all the above says; 0: it is not.
  Duration ahead(Time now) const { return std::max(-correction(now), Duration{0}); }
  size_t jobs() const { return jobs_.size(); }

 private:
  struct Job {
    uint64_t id;
    Duration length;
    uint64_t tokens;
    int64_t priority;
    Time since;
    uint64_t sent = 0;    // as the so-manieth; 0: not yet
    bool silent = false;  // nobody tells of its end
    PrefillWork work() const { return {to_ms(length), since, true, priority}; }
  };
  Duration before(uint64_t job, Time now) const;
  Duration first_left(Time now) const;
  bool gives_way(const PrefillWork& to, Time now) const;
  Duration running_left(const PrefillWork& mine, Time now) const;
  void take_next(Time now);
  Duration others_left(Time now) const { return std::max(told_ + others_ - now, Duration{0}); }
  Duration correction(Time now) const;

  PrefillOrder order_;
  size_t prioritized_ = 0;  // jobs of another priority than 0
  std::deque<Job> jobs_;    // the one that runs, then the others as they came
  Time started_{};          // the first job
  Duration behind_{0};      // of all jobs but the first
  uint64_t tokens_ = 0;     // of all jobs
  uint64_t sent_ = 0;       // jobs so far
  Duration correction_{0};  // signed; fades as the time it speaks of passes
  Time corrected_{};
  Duration others_{0};  // of jobs that others gave the node, from told_ on
  Time told_{};
};

}  // namespace mc::sched
