#include "store/client/local_hot_cache.h"

#include "base/hash.h"

namespace mc::store {

LocalHotCache::Value LocalHotCache::find(const std::string& key, const Version& version) {
  Lock lock(mutex_);
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return nullptr;
  if (it->second->version != version) {
    drop(it->second);
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->value;
}

bool LocalHotCache::wants(const std::string& key, const Version& version) {
  if (version.bytes > bytes_max_ / 8) return false;
  const uint64_t mark = xxh3(key.data(), key.size()) | 1;
  Lock lock(mutex_);
  uint64_t& slot = seen_[mark / 2 % kSeen];
  if (slot == mark) return true;
  slot = mark;
  return false;
}

void LocalHotCache::insert(const std::string& key, const Version& version, Value value) {
  Lock lock(mutex_);
  if (const auto it = by_key_.find(key); it != by_key_.end()) drop(it->second);
  while (!entries_.empty() && bytes_ + version.bytes > bytes_max_) drop(std::prev(entries_.end()));
  if (bytes_ + version.bytes > bytes_max_) return;
  bytes_ += version.bytes;
  entries_.push_front({key, version, std::move(value)});
  by_key_[key] = entries_.begin();
}

void LocalHotCache::erase(const std::string& key) {
  Lock lock(mutex_);
  if (const auto it = by_key_.find(key); it != by_key_.end()) drop(it->second);
}

void LocalHotCache::drop(std::list<Entry>::iterator it) {
  bytes_ -= it->version.bytes;
  by_key_.erase(it->key);
  entries_.erase(it);
}

uint64_t LocalHotCache::bytes() const {
  Lock lock(mutex_);
  return bytes_;
}

size_t LocalHotCache::size() const {
  Lock lock(mutex_);
  return entries_.size();
}

}  // namespace mc::store
