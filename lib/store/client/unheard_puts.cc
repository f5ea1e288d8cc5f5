#include "store/client/unheard_puts.h"

#include <utility>

namespace mc::store {

void UnheardPuts::give_back(rpc::SyncClient& master, const PutStart& start, Duration budget) {
  PutRevoke revoke;
  revoke.tenant = start.tenant;
  revoke.nonce = start.nonce;
  for (const PutWant& want : start.items) revoke.items.push_back({want.key, {}, 0});
  const auto reply = master.call(revoke, budget);
  if (reply || (reply.error().code != Code::kTimeout && reply.error().code != Code::kUnavailable))
    return;
  Lock lock(mutex_);
  left_.push_back(std::move(revoke));
  if (left_.size() <= kMost) return;
  left_.pop_front();
  ++first_;
}

uint64_t UnheardPuts::tell(rpc::SyncClient& master, Duration budget) {
  std::deque<PutRevoke> left;
  uint64_t told = 0;
  {
    Lock lock(mutex_);
    if (left_.empty()) return 0;
    left = left_;
    told = first_ + left.size();
  }
  for (const PutRevoke& revoke : left) master.tell(revoke, budget);
  return told;
}

void UnheardPuts::heard(uint64_t told) {
  if (told == 0) return;
  Lock lock(mutex_);
  for (; first_ < told && !left_.empty(); ++first_) left_.pop_front();
}

}  // namespace mc::store
