#include "io/loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace mc::io {
namespace {

// While memory has input, the loop looks at sockets in one turn of so many.
constexpr uint32_t kHotTurns = 8;
// And at descriptors at least this often.
constexpr Duration kPollEvery = std::chrono::microseconds(25);

Result<bool> has_input(void* socket) {
  int events = 0;
  size_t n = sizeof events;
  if (zmq_getsockopt(socket, ZMQ_EVENTS, &events, &n) == 0) return (events & ZMQ_POLLIN) != 0;
  if (zmq_errno() == EINTR) return true;  // perhaps
  return fail(Code::kInternal, "a watched socket: %s", zmq_strerror(zmq_errno()));
}

}  // namespace

Result<> Loop::Watch::look() {
  if (uses != nullptr) looked_at = *uses;
  MC_TRY(input, has_input(socket));
  return {};
}

Loop::Loop(const Clock& clock)
    : clock_(clock), now_(clock.now()), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  MC_CHECK(wake_);
}
Loop::~Loop() = default;

Loop::Handle Loop::add_watch(int fd, void* socket, Task ready, Uses uses) {
  const Handle handle = next_handle_++;
  watches_.push_back(
      {handle, fd, socket, std::make_shared<Task>(std::move(ready)), std::move(uses)});
  return handle;
}
Loop::Handle Loop::watch_fd(int fd, Task ready) {
  return add_watch(fd, nullptr, std::move(ready), nullptr);
}
Loop::Handle Loop::watch_socket(void* zmq_socket, Task ready, Uses uses) {
  int fd = -1;
  size_t n = sizeof fd;
  (void)zmq_getsockopt(zmq_socket, ZMQ_FD, &fd, &n);  // if it fails, the next turn says why
  return add_watch(fd, zmq_socket, std::move(ready), std::move(uses));
}
Loop::Handle Loop::watch_memory(std::function<bool()> look, Task ready) {
  const Handle handle = next_handle_++;
  memory_watches_.push_back({handle, std::make_shared<std::function<bool()>>(std::move(look)),
                             std::make_shared<Task>(std::move(ready))});
  return handle;
}
void Loop::unwatch(Handle handle) {
  std::erase_if(watches_, [handle](const Watch& w) { return w.handle == handle; });
  std::erase_if(memory_watches_, [handle](const MemoryWatch& w) { return w.handle == handle; });
}
bool Loop::watches(Handle handle) const {
  const auto is = [handle](const auto& w) { return w.handle == handle; };
  return std::any_of(watches_.begin(), watches_.end(), is) ||
         std::any_of(memory_watches_.begin(), memory_watches_.end(), is);
}

// Returns: the tasks that are ready without a wait.
Loop::Ready Loop::ready_now() {
  Ready ready;
  for (const MemoryWatch& w : memory_watches_)
    if ((*w.look)()) ready.emplace_back(w.handle, w.ready);
  return ready;
}

Loop::Handle Loop::at(Time when, Task task) {
  const Handle handle = next_handle_++;
  timers_.emplace(when, Timer{handle, Duration(0), std::make_shared<Task>(std::move(task))});
  due_.emplace(handle, when);
  return handle;
}
Loop::Handle Loop::every(Duration period, Task task) {
  MC_CHECK(period.count() > 0);
  const Handle handle = next_handle_++;
  const Time when = clock_.now() + period;
  timers_.emplace(when, Timer{handle, period, std::make_shared<Task>(std::move(task))});
  due_.emplace(handle, when);
  return handle;
}
void Loop::cancel(Handle timer) {
  auto due = due_.find(timer);
  if (due == due_.end()) return;
  auto [first, last] = timers_.equal_range(due->second);
  for (auto it = first; it != last; ++it) {
    if (it->second.handle != timer) continue;
    timers_.erase(it);
    break;
  }
  due_.erase(due);
}

bool Loop::post(Task task) {
  {
    Lock lock(mutex_);
    if (posted_.size() >= kPostedMax) return false;
    posted_.push_back(std::move(task));
    has_posted_.store(true, std::memory_order_relaxed);
    if (posted_.size() > 1) return true;  // the loop was woken for the first
  }
  eventfd_write(wake_.get(), 1);
  return true;
}

void Loop::stop() {
  {
    Lock lock(mutex_);
    stopped_ = true;
  }
  eventfd_write(wake_.get(), 1);
}

Result<> Loop::run() {
  for (;;) {
    {
      Lock lock(mutex_);
      if (stopped_) {
        stopped_ = false;
        return {};
      }
    }
    MC_TRY_(turn(std::chrono::hours(1)));
  }
}

// Whether any socket has input.
Result<bool> Loop::ask_sockets() {
  bool any = false;
  for (Watch& w : watches_) {
    if (w.socket == nullptr || w.looked()) continue;
    MC_TRY_(w.look());
    any = any || w.input;
  }
  return any;
}

// Adds the watches that are ready. Returns: there is posted work, or stop() was called.
//
// A socket's descriptor tells of news since the last use of the socket, or look at it. So the loop
// looks at each used socket before a wait, and otherwise at those whose descriptor tells of some.
// zmq_poll looks at each of them twice, and each look is a system call.
Result<bool> Loop::wait_for(Duration wait, Ready& ready) {
  // Rounded up: waking just before a timer is due would spin.
  const auto ms = std::max<int64_t>(0, (wait.count() + 999'999) / 1'000'000);
  descriptors_.clear();
  descriptors_.push_back({wake_.get(), POLLIN, 0});
  for (const Watch& w : watches_) descriptors_.push_back({w.fd, POLLIN, 0});
  const int polled = ::poll(descriptors_.data(), descriptors_.size(), static_cast<int>(ms));
  now_ = polled_ = clock_.now();
  if (polled < 0 && errno != EINTR) return fail_errno("poll %zu descriptors", descriptors_.size());
  for (size_t i = 0; i < watches_.size(); ++i) {
    Watch& w = watches_[i];
    const bool told = polled > 0 && descriptors_[i + 1].revents != 0;
    if (told && w.socket != nullptr && !w.input) MC_TRY_(w.look());
    if (w.socket == nullptr ? told : std::exchange(w.input, false))
      ready.emplace_back(w.handle, w.ready);
  }
  return polled > 0 && descriptors_[0].revents != 0;
}

Result<> Loop::turn(Duration wait) {
  wait = std::min<Duration>(wait, std::chrono::hours(1));
  Ready ready = ready_now();
  const bool hot = !ready.empty() && ++hot_turns_ % kHotTurns != 0;
  if (!ready.empty()) wait = Duration(0);
  if (!timers_.empty()) wait = std::min(wait, timers_.begin()->first - clock_.now());
  if (!hot) {
    MC_TRY(const bool input, ask_sockets());
    if (input) wait = Duration(0);
  }
  const size_t of_memory = ready.size();
  bool posted = false;
  if (hot && clock_.now() - polled_ < kPollEvery) {
    now_ = clock_.now();
    posted = has_posted_.load(std::memory_order_relaxed);
  } else {
    MC_TRY(posted, wait_for(wait, ready));
  }
  run_timers();
  const auto run = [this](const auto& task) {
    // A task of this turn may have unwatched one that comes after it.
    if (watches(task.first)) (*task.second)();
  };
  std::for_each_n(ready.begin(), of_memory, run);
  if (posted) run_posted();
  std::for_each(ready.begin() + static_cast<ptrdiff_t>(of_memory), ready.end(), run);
  return {};
}

void Loop::run_posted() {
  eventfd_t n = 0;
  eventfd_read(wake_.get(), &n);
  std::vector<Task> work;
  {
    Lock lock(mutex_);
    work.swap(posted_);
    has_posted_.store(false, std::memory_order_relaxed);
  }
  for (Task& task : work) task();
}

void Loop::run_timers() {
  const Time until = now_;
  // Only those due at the start: a task that sets a timer for now must not prolong the turn
  // forever.
  std::vector<Handle> due;
  for (auto it = timers_.begin(); it != timers_.end() && it->first <= until; ++it)
    due.push_back(it->second.handle);
  for (const Handle handle : due) {
    const auto when = due_.find(handle);
    if (when == due_.end()) continue;  // cancelled by a task before it
    auto it = timers_.lower_bound(when->second);
    while (it->second.handle != handle) ++it;
    const auto task = it->second.task;
    auto node = timers_.extract(it);
    if (const Duration period = node.mapped().period; period.count() > 0) {
      // From now, not from when it was due: a stalled loop does not run a burst of ticks.
      node.key() = when->second = until + period;
      timers_.insert(std::move(node));
    } else {
      due_.erase(when);
    }
    (*task)();
  }
}

}  // namespace mc::io
