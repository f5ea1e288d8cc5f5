// One NIC: its device, if it has one, and the thread that polls its completions. Private to
// rdma/*.cc. The thread runs near the NIC's own memory. It sleeps while nothing is in flight, and
// while callers attend to the NIC: those post and poll themselves, and both at once would wait for
// each other's locks. A caller that leaves calls kick(), so that the thread polls for the
// remaining completions.
//
// Thread: any; the listener is called on the NIC's thread.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "io/fd.h"
#include "xfer/transports/rdma/device.h"

namespace mc::xfer::rdma {

class Nic {
 public:
  class Events {
   public:
    virtual ~Events() = default;
    // Handles what has completed. With `wait` also when another thread is about it just now.
    virtual bool drain(Nic& nic, bool wait) = 0;
    // `moved`: connections that were made before lead nowhere.
    virtual void port_changed(Nic& nic, bool up, bool moved) = 0;
    virtual void died(Nic& nic, const DevicePtr& device) = 0;
  };

  Nic(size_t i, std::string n, int node, std::vector<int> cpus)
      : index(i), name(std::move(n)), numa(node), cpus_(std::move(cpus)) {}
  ~Nic() { stop(); }
  const size_t index;
  const std::string name;
  const int numa;  // -1: unknown

  Result<> start(Events& events);
  void stop();
  void use(DevicePtr device);  // null: it is gone
  // Runs a job that takes long on the NIC's thread, which has nothing else to do without a device.
  void run(std::function<void()> job);
  DevicePtr device() const;  // null: it is gone
  bool up() const { return up_.load(); }
  void kick();
  void wake();
  void attend() { callers_.fetch_add(1); }
  void leave() {  // kick() is due
    callers_.fetch_sub(1);
  }
  // Taken by who polls the device.
  Mutex& poll_lock() MC_TSA(lock_returned(poll_)) { return poll_; }

 private:
  void run();
  void serve(const DevicePtr& device);
  void doze(Device& device);
  void take_events(const DevicePtr& device);
  DevicePtr wait_for_device();
  bool stopping() const;
  static constexpr int kLooks = 50;  // with something under way, before it sleeps

  const std::vector<int> cpus_;
  Events* events_ = nullptr;
  Mutex poll_;
  mutable Mutex mutex_;
  Condition changed_;
  DevicePtr device_ MC_GUARDED_BY(mutex_);
  std::function<void()> job_ MC_GUARDED_BY(mutex_);
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::atomic<bool> up_{false}, asleep_{false}, armed_{false};
  std::atomic<uint32_t> callers_{0};  // that attend to it
  io::Fd wake_;
  std::thread thread_;
};

}  // namespace mc::xfer::rdma
