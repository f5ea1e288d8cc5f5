#include "xfer/transports/rdma/kept_pairs.h"

#include "xfer/core/messages.h"

namespace mc::xfer::rdma {

void KeptPairs::add(const Owner& owner, uint32_t nic, uint32_t number) {
  held_[owner].emplace(nic, number);
  if (timer_ == 0) timer_ = loop_.every(kEvery, [this] { tell(); });
}

void KeptPairs::remove(const Owner& owner, uint32_t nic, uint32_t number) {
  const auto it = held_.find(owner);
  if (it == held_.end()) return;
  it->second.erase({nic, number});
  if (it->second.empty()) held_.erase(it);
  if (!held_.empty()) return;
  loop_.cancel(timer_);
  timer_ = 0;
}

// No answer is waited for: an owner of an earlier release does not know the message.
void KeptPairs::tell() {
  for (const auto& [owner, pairs] : held_) {
    const auto client = client_(owner.control);
    if (!client) continue;
    KeepQueuePairs m;
    m.secret.bytes = owner.secret;
    for (const auto& [nic, number] : pairs) {
      if (m.nics.size() == kQueuePairsMax) break;
      m.nics.push_back(nic);
      m.numbers.push_back(number);
    }
    (*client)->call(m, kEvery / 2, [](const Result<QueuePairsKept>&) {});
  }
}

}  // namespace mc::xfer::rdma
