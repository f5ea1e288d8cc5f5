// Puts that clients of one pool gave up before any answer to their put-start came. Their master may
// have granted them, or may yet when it goes on. Until they are given back, by whichever client
// puts next, their keys are being written.
//
// Thread: any.
#pragma once
#include <deque>
#include <optional>

#include "base/mutex.h"
#include "rpc/client.h"
#include "store/protocol/messages.h"

namespace mc::store {

// Whether a call that ended so may have been carried out, unheard.
inline bool unheard(const Error& error) {
  return error.code == Code::kTimeout || error.code == Code::kUnavailable ||
         error.code == Code::kStale || error.code == Code::kCorrupt;
}

class UnheardPuts {
 public:
  // Gives the put back. If no master of this epoch answers within `budget`, give_back_left() tries
  // again; of many, the oldest are left to the master's --put-discard.
  void give_back(rpc::SyncClient& master, uint64_t epoch, const PutStart& start, Duration budget);
  // Gives the oldest that are left back. Stops at the first that gets no answer within `budget`.
  void give_back_left(rpc::SyncClient& master, uint64_t epoch, Duration budget);

 private:
  static constexpr size_t kMost = 64, kAtOnce = 4;
  std::optional<PutRevoke> take_oldest();
  Mutex mutex_;
  std::deque<PutRevoke> left_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::store
