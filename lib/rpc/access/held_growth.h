// Says whether a process grew by what the peers of its socket hold, for
// rpc/access/connection_guard.h. Growth is seen of the whole process only, and may be the owner's
// own: the guard has the owner take all messages that are whole, and counts only growth after that.
//
// Thread: drained() belongs to the socket's thread, on_doubt() to the one that sets up; the others
// to the guard's.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

#include "base/mutex.h"

namespace mc::rpc {

class HeldGrowth {
 public:
  // Memory is in bytes.
  struct Since {
    uint64_t memory = 0;  // of the process, when little was held; 0: to be set
    uint64_t answer = 0;  // the number of drains after which the owner answered; 0: not asked
    bool again = false;   // the owner answered, and `memory` is that of then
  };
  // `ask` has the owner receive until nothing is left, soon; false: it cannot take the question
  // now. It is called on the guard's thread. Without it growth is laid on peers at once.
  void on_doubt(std::function<bool()> ask);
  void drained() { drains_.fetch_add(1, std::memory_order_release); }  // nothing was left
  // Before the guard takes what the owner was given: all that was given by then is among it.
  void look() { seen_ = drains_.load(std::memory_order_acquire); }
  // True when the process grew by more than `most` since, and it was not the owner of the socket
  // that did, nor messages that the owner did not come to yet. The wait for
  // the owner ends at eight times `most`.
  bool grew(Since& since, uint64_t memory, uint64_t most);

  Since all;  // of the guard, for all peers together

 private:
  Mutex mutex_;
  std::function<bool()> ask_ MC_GUARDED_BY(mutex_);
  std::atomic<uint64_t> drains_{0};
  uint64_t seen_ = 0;
};

}  // namespace mc::rpc
