#include "store/client/unheard_puts.h"

#include <algorithm>
#include <utility>

namespace mc::store {

void UnheardPuts::give_back(rpc::SyncClient& master, const PutStart& start, Duration budget) {
  PutRevoke revoke;
  revoke.tenant = start.tenant;
  revoke.nonce = start.nonce;
  for (const PutWant& want : start.items) revoke.items.push_back({want.key, {}, 0});
  const auto reply = master.call(revoke, budget);
  if (reply || !unheard(reply.error())) return;
  Lock lock(mutex_);
  left_.push_back(std::move(revoke));
  if (left_.size() <= kMost) return;
  left_.pop_front();
  ++first_;
}

std::vector<PutRevoke> UnheardPuts::oldest(uint64_t& end) {
  Lock lock(mutex_);
  const size_t n = std::min(left_.size(), kAtOnce);
  end = first_ + n;
  return {left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(n)};
}

uint64_t UnheardPuts::tell(rpc::SyncClient& master, Duration budget, bool several) {
  if (budget <= Duration::zero()) return 0;
  uint64_t end = 0;
  const auto some = oldest(end);
  if (some.empty()) return 0;
  if (!several) {
    for (const PutRevoke& revoke : some) master.tell(revoke, budget);
    return end;
  }
  end -= some.size();
  for (const PutRevoke& revoke : some) {
    const auto reply = master.call(revoke, budget);
    if (!reply && unheard(reply.error())) break;
    heard(++end);
  }
  return 0;
}

void UnheardPuts::heard(uint64_t told) {
  if (told == 0) return;
  Lock lock(mutex_);
  for (; first_ < told && !left_.empty(); ++first_) left_.pop_front();
}

}  // namespace mc::store
