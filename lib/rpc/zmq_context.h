// The ZeroMQ context of this process, never ended: sockets of statics may outlive main. A child of
// a fork makes its own, because the threads of the parent's are not there.
//
// Thread: any. It takes no lock: another thread may have held it while this one forked.
#pragma once
#include <zmq.h>

#include <atomic>
#include <memory>

#include "base/fork.h"

namespace mc::rpc {

class ZmqContext {
 public:
  void* get() {
    Made* made = made_.load(std::memory_order_acquire);
    while (made == nullptr || !made->mark.here()) {
      auto fresh = std::make_unique<Made>();
      if (made_.compare_exchange_strong(made, fresh.get())) return fresh.release()->context;
      zmq_ctx_term(fresh->context);  // another thread was faster
    }
    return made->context;
  }

 private:
  struct Made {
    ProcessMark mark;
    void* context = zmq_ctx_new();
  };
  std::atomic<Made*> made_{nullptr};
};

}  // namespace mc::rpc
