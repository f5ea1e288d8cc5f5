#include "store/client/unheard_puts.h"

#include <algorithm>
#include <utility>

namespace mc::store {
namespace {

// A master that was replaced may not know it: its answer, of an older epoch, is none.
bool answered(rpc::SyncClient& master, uint64_t epoch, const PutRevoke& revoke, Duration budget) {
  const auto reply = master.call(revoke, budget);
  return reply ? reply->epoch >= epoch : !unheard(reply.error());
}

}  // namespace

void UnheardPuts::give_back(rpc::SyncClient& master, uint64_t epoch, const PutStart& start,
                            Duration budget) {
  PutRevoke revoke;
  revoke.tenant = start.tenant;
  revoke.nonce = start.nonce;
  for (const PutWant& want : start.items) revoke.items.push_back({want.key, {}, 0});
  if (answered(master, epoch, revoke, budget)) return;
  Lock lock(mutex_);
  left_.push_back(std::move(revoke));
  if (left_.size() > kMost) left_.pop_front();
}

std::vector<PutRevoke> UnheardPuts::oldest() {
  Lock lock(mutex_);
  const size_t n = std::min(left_.size(), kAtOnce);
  return {left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(n)};
}

void UnheardPuts::give_back_left(rpc::SyncClient& master, uint64_t epoch, Duration budget) {
  if (budget <= Duration::zero()) return;
  for (const PutRevoke& revoke : oldest()) {
    if (!answered(master, epoch, revoke, budget)) return;
    Lock lock(mutex_);
    std::erase_if(left_, [&](const PutRevoke& r) { return r.nonce == revoke.nonce; });
  }
}

}  // namespace mc::store
