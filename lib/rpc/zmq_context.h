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
  // A conductor has one for each of its workers. libzmq's own limit is 1,023.
  static constexpr int kSocketsMax = 40'000;
  static void* with_many_sockets(void* context) {
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, kSocketsMax);
    return context;
  }
  struct Made {
    ProcessMark mark;
    void* context = with_many_sockets(zmq_ctx_new());
  };
  std::atomic<Made*> made_{nullptr};
};

}  // namespace mc::rpc
