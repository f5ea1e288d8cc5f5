#include "xfer/transports/rdma/served_pairs.h"

#include <algorithm>

namespace mc::xfer::rdma {
namespace {
uint64_t key_of(size_t nic, uint32_t number) { return uint64_t{nic} << 32 | number; }
}  // namespace

void ServedPairs::add(size_t nic, uint32_t number, std::shared_ptr<void> pair) {
  while (pairs_.size() >= kMost && !order_.empty()) {
    pairs_.erase(order_.front());
    order_.pop_front();
  }
  const uint64_t key = key_of(nic, number);
  pairs_[key] = {nic, std::move(pair)};
  order_.push_back(key);
  if (order_.size() > 2 * kMost)
    std::erase_if(order_, [&](uint64_t k) { return !pairs_.contains(k); });
  serving_.set(static_cast<double>(pairs_.size()));
}

void ServedPairs::close(size_t nic, uint32_t number) {
  pairs_.erase(key_of(nic, number));
  serving_.set(static_cast<double>(pairs_.size()));
}

void ServedPairs::close_nic(size_t nic) {
  std::erase_if(pairs_, [&](const auto& p) { return p.second.nic == nic; });
}

void ServedPairs::close_all() {
  pairs_.clear();
  order_.clear();
  serving_.set(0);
}

void ServedPairs::close_all_for(uint64_t fence) {
  close_all();
  uint64_t ended = ended_.load(std::memory_order_relaxed);
  while (ended < fence && !ended_.compare_exchange_weak(ended, fence, std::memory_order_release))
    continue;
}

}  // namespace mc::xfer::rdma
