#include "serve/external/external_cache.h"

namespace mc::serve {
namespace {

constexpr size_t kGroupsMax = 64;

uint8_t medium_bit(const std::string& medium) {
  if (medium.empty() || medium == "GPU" || medium == "gpu") return ExternalCache::kGpu;
  const bool memory = medium == "CPU" || medium == "cpu" || medium == "CPU_PINNED";
  return memory ? ExternalCache::kCpu : ExternalCache::kDisk;
}

std::string salt_text(const std::string& adapter, const std::string& salt) {
  return adapter.empty() ? salt : "lora" + std::string(1, '\0') + adapter + '\0' + salt;
}

// What is in a block beside tokens.
BlockHash with_content(const BlockHash& parent, std::string_view content) {
  const std::string bytes =
      std::string(reinterpret_cast<const char*>(parent.bytes.data()), parent.bytes.size()) +
      std::string(content);
  return chain_root(bytes);
}

}  // namespace

ExternalCache::ExternalCache(sched::PrefixIndex& index, sched::PrefixIndex::Slot slot,
                             uint32_t block_tokens, size_t blocks_max)
    : index_(index), slot_(slot), block_tokens_(block_tokens), blocks_max_(blocks_max) {}

ExternalCache::~ExternalCache() { clear(); }

void ExternalCache::clear() {
  for (const auto& [tag, known] : blocks_) index_.remove(slot_, tag);
  blocks_.clear();
  tags_.clear();
}

void ExternalCache::apply(const ExternalBatch& batch) {
  skipped_ += batch.skipped;
  for (const ExternalEvent& e : batch.events) switch (e.kind) {
      case ExternalEvent::Kind::kStored: store(e); break;
      case ExternalEvent::Kind::kRemoved: remove(e); break;
      case ExternalEvent::Kind::kCleared: clear(); break;
    }
}

void ExternalCache::store(const ExternalEvent& e) {
  if (block_tokens_ == 0) block_tokens_ = e.block_tokens;
  if (!e.full && e.group && other_groups_.size() < kGroupsMax) other_groups_.insert(*e.group);
  if ((e.adapter && e.lora.empty()) || !e.full || !e.here || e.block_tokens != block_tokens_) {
    skipped_ += e.hashes.size();
    return;
  }
  tells_salts_ |= !e.extras.empty() || !e.salt.empty();
  BlockHash parent = chain_root(salt_text(e.lora, e.extras.empty() ? e.salt : e.extras[0].salt));
  if (e.parent) {
    const auto name = tags_.find(*e.parent);
    if (name == tags_.end()) {
      orphans_ += e.hashes.size();
      return;
    }
    parent = blocks_.at(name->second).hash;
  }
  for (size_t i = 0; i < e.hashes.size(); ++i) {
    parent = hash_of(e, i, parent);
    const uint64_t tag = parent.tag();
    const auto name = tags_.find(e.hashes[i]);
    if (name != tags_.end() && name->second != tag) {  // its name now means another block
      const uint64_t old = name->second;
      tags_.erase(name);
      if (--blocks_.at(old).names == 0) drop(old);
    }
    if (tags_.size() >= blocks_max_ && !tags_.contains(e.hashes[i])) {
      skipped_ += e.hashes.size() - i;
      return;
    }
    Known& known = blocks_[tag];
    known.hash = parent;
    known.media |= medium_bit(e.medium);
    if (tags_.emplace(e.hashes[i], tag).second) ++known.names;
    index_.add(slot_, tag);
  }
}

BlockHash ExternalCache::hash_of(const ExternalEvent& e, size_t block, BlockHash parent) {
  std::string content = e.extras.empty() ? "" : e.extras[block].content;
  if (!e.extras.empty() && e.extras[block].unknown) {
    ++unknown_extra_;
    content = "?" + std::to_string(e.hashes[block]);
  }
  return chain(parent, std::span(e.tokens).subspan(block * block_tokens_, block_tokens_), content);
}

BlockHash ExternalCache::chain(const BlockHash& parent, std::span<const int32_t> tokens,
                               std::string_view content) {
  return chain_hash(content.empty() ? parent : with_content(parent, content), tokens);
}

std::string ExternalCache::chain_salt(const std::string& adapter, const std::string& salt) const {
  return salt_text(adapter, tells_salts_ ? salt : "");
}

void ExternalCache::remove(const ExternalEvent& e) {
  if (!e.here) return;
  if (e.group && other_groups_.contains(*e.group)) return;  // their blocks have the same names
  for (const uint64_t hash : e.hashes) {
    const auto name = tags_.find(hash);
    if (name == tags_.end()) continue;
    const uint64_t tag = name->second;
    Known& known = blocks_.at(tag);
    if (known.names > 1) {  // another name keeps it (salted by the engine, perhaps)
      --known.names;
      tags_.erase(name);
      continue;
    }
    known.media &= static_cast<uint8_t>(~medium_bit(e.medium));
    if (known.media != 0) continue;
    tags_.erase(name);
    drop(tag);
  }
}

void ExternalCache::drop(uint64_t tag) {
  blocks_.erase(tag);
  index_.remove(slot_, tag);
}

size_t ExternalCache::match(std::span<const uint64_t> tags, uint8_t media) const {
  size_t n = 0;
  for (const uint64_t tag : tags) {
    const auto it = blocks_.find(tag);
    if (it == blocks_.end() || (it->second.media & media) == 0) break;
    ++n;
  }
  return n;
}

size_t ExternalCache::match_names(std::span<const uint64_t> names, uint8_t media) const {
  size_t n = 0;
  for (const uint64_t name : names) {
    const auto it = tags_.find(name);
    if (it == tags_.end() || (blocks_.at(it->second).media & media) == 0) break;
    ++n;
  }
  return n;
}

}  // namespace mc::serve
