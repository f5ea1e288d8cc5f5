// The thread of an open device. It sleeps on the device's doorbell in the fabric; others only set
// flags and ring. It runs work that had to wait, flushes queue pairs that others put in error, and
// turns flags into events.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "events.h"
#include "objects.h"

namespace mc::emu {
namespace {

// Queue pairs that outlive their end for a while. They are given back under the lock under which
// ibv_destroy_qp does: which of the two was last is an order that the thread sanitizer sees, too,
// where it does not see what this library counts.
class HeldQps {
 public:
  explicit HeldQps(Context& context) : context_(context) {}
  ~HeldQps() {
    std::lock_guard lock(context_.mutex);
    qps_.clear();
  }
  HeldQps(const HeldQps&) = delete;
  HeldQps& operator=(const HeldQps&) = delete;
  void add(const std::shared_ptr<Qp>& qp) { qps_.push_back(qp); }  // under the lock
  auto begin() const { return qps_.begin(); }
  auto end() const { return qps_.end(); }

 private:
  Context& context_;
  std::vector<std::shared_ptr<Qp>> qps_;
};

template <class Visit>
void each_qp(Context& context, const Visit& visit) {
  HeldQps qps(context);
  {
    std::lock_guard lock(context.mutex);
    for (const auto& [number, qp] : context.qps) qps.add(qp);
  }
  for (const auto& qp : qps) {
    std::lock_guard lock(qp->mutex);
    if (!qp->closed) visit(*qp);
  }
}

void write_bits(const Context& context, uint32_t bits, EventRecord record) {
  for (; bits != 0; bits &= bits - 1) {
    record.type = uint32_t(__builtin_ctz(bits));
    write_event(context, record);
  }
}

void sweep_qps(Context& context) {
  each_qp(context, [&](Qp& qp) {
    if (qp.slot->state.load() == IBV_QPS_ERR) flush(qp);
    write_bits(context, qp.slot->events.exchange(0), {0, EventKind::kQp, qp.number, 0});
  });
}

void sweep_cqs(Context& context) {
  std::lock_guard lock(context.mutex);
  for (const auto& [index, cq] : context.cqs) {
    if (cq->slot->notify.exchange(0) != 0) notify_channel(*cq);
    write_bits(context, cq->slot->events.exchange(0),
               {0, EventKind::kCq, cq->ref.slot, cq->ref.generation});
  }
}

void sweep_srqs(Context& context) {
  std::lock_guard lock(context.mutex);
  for (const auto& [index, srq] : context.srqs)
    write_bits(context, srq->slot->events.exchange(0),
               {0, EventKind::kSrq, srq->ref.slot, srq->ref.generation});
}

void port_events(Context& context) {
  uint32_t events[kPortEventsMax], count = 0;
  {
    Held held(context.slot->lock);
    for (; count < context.slot->events_count; ++count) events[count] = context.slot->events[count];
    context.slot->events_count = 0;
  }
  for (uint32_t i = 0; i < count; ++i) write_event(context, {events[i], EventKind::kPort, 0, 0});
}

void look(Context& context) {
  uint32_t pending = context.slot->pending.exchange(0);
  if ((pending & kPortEvents) != 0) port_events(context);
  if ((pending & kSweepQps) != 0) sweep_qps(context);
  if ((pending & kSweepCqs) != 0) sweep_cqs(context);
  if ((pending & kSweepSrqs) != 0) sweep_srqs(context);
  if ((pending & kPump) != 0) {
    each_qp(context, [](Qp& qp) {
      if (qp.count > 0 && qp.ring[qp.first].attempts > 0) qp.ring[qp.first].due = 0;
      pump(qp);
    });
  }
}

void run(Context& context) {
  prctl(PR_SET_TIMERSLACK, 1);
  pthread_setname_np(pthread_self(), "verbs-emulator");
  {
    Held life(context.slot->life);
    context.started.store(true);
    context.started.notify_all();
    while (!context.stopping.load()) {
      uint32_t bell = context.slot->doorbell.load();
      look(context);
      run_due(context, now_ns());
      uint64_t due = context.next_due.load();
      if (!context.stopping.load() && context.slot->pending.load() == 0 && due > now_ns())
        wait_on(context.slot->doorbell, bell, due);
    }
  }
}

}  // namespace

void start_engine(Context& context) {
  // The client's signals are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  context.engine = std::thread([&context] { run(context); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  context.started.wait(false);
}

void stop_engine(Context& context) {
  context.stopping.store(true);
  wake(context.slot->doorbell);
  context.engine.join();
}

void schedule(Context& context, Qp& qp, uint64_t due) {
  bool earlier = false;
  {
    std::lock_guard lock(context.mutex);
    context.timers.emplace(due, qp.number);
    earlier = context.timers.begin()->first < context.next_due.load();
    if (earlier) context.next_due.store(context.timers.begin()->first);
  }
  if (earlier && std::this_thread::get_id() != context.engine.get_id())
    wake(context.slot->doorbell);
}

void run_due(Context& context, uint64_t now) {
  if (context.next_due.load() > now) return;
  HeldQps ready(context);
  {
    std::lock_guard lock(context.mutex);
    auto& timers = context.timers;
    while (!timers.empty() && timers.begin()->first <= now) {
      auto found = context.qps.find(timers.begin()->second);
      if (found != context.qps.end()) ready.add(found->second);
      timers.erase(timers.begin());
    }
    context.next_due.store(timers.empty() ? UINT64_MAX : timers.begin()->first);
  }
  for (const auto& qp : ready) {
    std::lock_guard lock(qp->mutex);
    if (!qp->closed) pump(*qp);
  }
}

}  // namespace mc::emu
