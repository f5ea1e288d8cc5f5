#include "store/client/unheard_puts.h"

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

std::optional<PutRevoke> UnheardPuts::take_oldest() {
  Lock lock(mutex_);
  if (left_.empty()) return {};
  std::optional<PutRevoke> oldest = std::move(left_.front());
  left_.pop_front();
  return oldest;
}

// While one is tried it is not in the list: no other client waits for its answer.
void UnheardPuts::give_back_left(rpc::SyncClient& master, uint64_t epoch, Duration budget) {
  if (budget <= Duration::zero()) return;
  for (size_t i = 0; i < kAtOnce; ++i) {
    std::optional<PutRevoke> oldest = take_oldest();
    if (!oldest || answered(master, epoch, *oldest, budget)) continue;
    Lock lock(mutex_);
    if (left_.size() < kMost) left_.push_front(std::move(*oldest));
    return;
  }
}

}  // namespace mc::store
