#include "xfer/transports/rdma/served_pairs.h"

namespace mc::xfer::rdma {
namespace {
uint64_t key_of(size_t nic, uint32_t number) { return uint64_t{nic} << 32 | number; }
}  // namespace

void ServedPairs::erase(std::unordered_map<uint64_t, Served>::iterator it) {
  heard_.erase(it->second.place);
  pairs_.erase(it);
}

void ServedPairs::add(size_t nic, uint32_t number, std::shared_ptr<void> pair) {
  close(nic, number);
  while (pairs_.size() >= kMost) erase(pairs_.find(heard_.front()));
  const uint64_t key = key_of(nic, number);
  pairs_[key] = {nic, std::move(pair), heard_.insert(heard_.end(), key)};
  serving_.set(static_cast<double>(pairs_.size()));
}

void ServedPairs::heard(size_t nic, uint32_t number) {
  const auto it = pairs_.find(key_of(nic, number));
  if (it != pairs_.end()) heard_.splice(heard_.end(), heard_, it->second.place);
}

void ServedPairs::close(size_t nic, uint32_t number) {
  if (const auto it = pairs_.find(key_of(nic, number)); it != pairs_.end()) erase(it);
  serving_.set(static_cast<double>(pairs_.size()));
}

void ServedPairs::close_nic(size_t nic) {
  for (auto it = pairs_.begin(); it != pairs_.end();) {
    const auto here = it++;
    if (here->second.nic == nic) erase(here);
  }
  serving_.set(static_cast<double>(pairs_.size()));
}

void ServedPairs::close_all() {
  pairs_.clear();
  heard_.clear();
  serving_.set(0);
}

void ServedPairs::close_all_for(uint64_t fence) {
  close_all();
  uint64_t ended = ended_.load(std::memory_order_relaxed);
  while (ended < fence && !ended_.compare_exchange_weak(ended, fence, std::memory_order_release))
    continue;
}

}  // namespace mc::xfer::rdma
