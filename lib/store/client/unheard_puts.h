// Puts that a client gave up before any answer to their put-start came. Their master may have
// granted them, or may yet when it goes on. Until they are given back, their keys are being
// written.
//
// Thread: any.
#pragma once
#include <deque>
#include <vector>

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
  // Gives the put back. If the master does not answer within `budget`, tell() sends it again; of
  // many, the oldest are left to the master's --put-discard.
  void give_back(rpc::SyncClient& master, const PutStart& start, Duration budget);
  // Sends the oldest that are left ahead of a put-start. Waits for answers where there are several
  // masters: the one that leads must have them. Returns: for heard().
  uint64_t tell(rpc::SyncClient& master, Duration budget, bool several);
  // That put-start was answered: the master has what was sent before it.
  void heard(uint64_t told);

 private:
  static constexpr size_t kMost = 64, kAtOnce = 4;
  std::vector<PutRevoke> oldest(uint64_t& end);
  Mutex mutex_;
  std::deque<PutRevoke> left_ MC_GUARDED_BY(mutex_);
  uint64_t first_ MC_GUARDED_BY(mutex_) = 0;  // the number of the first that is left
};

}  // namespace mc::store
