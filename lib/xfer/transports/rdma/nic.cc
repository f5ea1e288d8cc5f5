#include "xfer/transports/rdma/nic.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"

namespace mc::xfer::rdma {
namespace {

constexpr int kDozeMs = 1000;

void run_on(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &set);
  // A container may forbid it: then the thread runs anywhere.
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

}  // namespace

Result<> Nic::start(Events& events) {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return fail_errno("eventfd");
  events_ = &events;
  thread_ = std::thread([this] { run(); });
  return {};
}

void Nic::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  wake();
  if (thread_.joinable()) thread_.join();
}

bool Nic::stopping() const {
  Lock lock(mutex_);
  return stopping_;
}

void Nic::use(DevicePtr device) {
  up_.store(device != nullptr && device->port()->up);
  {
    Lock lock(mutex_);
    device_ = std::move(device);
  }
  changed_.notify_all();
  wake();
}

DevicePtr Nic::device() const {
  Lock lock(mutex_);
  return device_;
}

void Nic::run(std::function<void()> job) {
  {
    Lock lock(mutex_);
    job_ = std::move(job);
  }
  changed_.notify_all();
}

DevicePtr Nic::wait_for_device() {
  for (;;) {
    std::function<void()> job;
    {
      Lock lock(mutex_);
      while (!stopping_ && !job_ && (device_ == nullptr || device_->dead())) changed_.wait(mutex_);
      if (stopping_ || !job_) return stopping_ ? nullptr : device_;
      job = std::exchange(job_, nullptr);
    }
    job();
  }
}

void Nic::wake() {
  const uint64_t one = 1;
  if (wake_) (void)!::write(wake_.get(), &one, sizeof one);
}

// Where the thread sleeps without being woken by completions, it has to be from now on.
void Nic::kick() {
  if (!asleep_.load() || callers_.load() > 0) return;
  const DevicePtr device = this->device();
  if (device == nullptr || device->under_way() == 0 || armed_.exchange(true)) return;
  device->arm();
  events_->drain(*this, true);  // those that came before
}

void Nic::run() {
  run_on(cpus_);
  while (const DevicePtr device = wait_for_device()) serve(device);
}

void Nic::serve(const DevicePtr& device) {
  int idle = 0;
  while (!device->dead() && !stopping() && this->device() == device) {
    const bool left_to_callers = callers_.load() > 0;
    if (!left_to_callers && events_->drain(*this, true)) {
      idle = 0;
    } else if (!left_to_callers && device->under_way() > 0 && ++idle < kLooks) {
      ::sched_yield();
    } else {
      doze(*device);
      take_events(device);
      idle = 0;
    }
  }
}

// Either it sees here that the last caller left, or that one sees that it sleeps.
void Nic::doze(Device& device) {
  asleep_.store(true);
  if (callers_.load() == 0 && device.under_way() > 0) {
    armed_.store(true);
    device.arm();
    if (events_->drain(*this, true)) {
      asleep_.store(false);
      return;
    }
  }
  pollfd fds[3] = {{device.completion_fd(), POLLIN, 0},
                   {device.event_fd(), POLLIN, 0},
                   {wake_.get(), POLLIN, 0}};
  (void)::poll(fds, 3, kDozeMs);
  asleep_.store(false);
  armed_.store(false);
  if (fds[0].revents != 0) device.take_completion_events();
  uint64_t count = 0;
  if (fds[2].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
}

namespace {

// Something of the port may be another now.
bool of_port(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER: return true;
    default: return false;
  }
}

}  // namespace

void Nic::take_events(const DevicePtr& device) {
  while (const auto event = device->next_event()) {
    log_info("xfer", "rdma: %s: %s", name.c_str(), device->verbs().event_type_str(*event));
    const bool port_event = *event == IBV_EVENT_PORT_ERR || *event == IBV_EVENT_PORT_ACTIVE;
    if (of_port(*event)) {
      const bool moved = device->reread_port();
      const bool up = device->port()->up;  // several events may have come since
      if (up_.exchange(up) != up || moved || port_event) events_->port_changed(*this, up, moved);
    } else if ((*event == IBV_EVENT_DEVICE_FATAL || *event == IBV_EVENT_CQ_ERR) &&
               !device->dead()) {
      // Without its completion queue the device is of no use: it is opened anew.
      device->set_dead();
      up_.store(false);
      events_->died(*this, device);
    }
  }
}

}  // namespace mc::xfer::rdma
