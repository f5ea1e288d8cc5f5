// Tracks the cached blocks of an external engine from its events.
//
// It computes our chained hashes from the tokens in the events, and from what else enters an
// engine's own (an adapter's name, a salt, pictures), maps the engine's block names to them, and
// adds them to the prefix index. A block with an unknown parent has no hash: it counts as an
// orphan. Blocks of adapters without a name, of another block size and of sliding windows are
// skipped. One with extra keys that are not understood is known by the engine's name only. A block
// in several media stays until the last one drops it.
//
// Bounded: at most `blocks_max` blocks. Thread: the loop's.
#pragma once
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>

#include "base/hash.h"
#include "sched/prefix_index.h"
#include "serve/external/external_events.h"

namespace mc::serve {

class ExternalCache {
 public:
  // `block_tokens` 0: as the first event says.
  ExternalCache(sched::PrefixIndex& index, sched::PrefixIndex::Slot slot, uint32_t block_tokens,
                size_t blocks_max);
  ~ExternalCache();  // leaves the index
  ExternalCache(const ExternalCache&) = delete;
  ExternalCache& operator=(const ExternalCache&) = delete;

  void apply(const ExternalBatch& batch);
  void clear();

  sched::PrefixIndex::Slot slot() const { return slot_; }
  uint32_t block_tokens() const { return block_tokens_; }
  size_t blocks() const { return blocks_.size(); }
  uint64_t orphans() const { return orphans_; }
  uint64_t skipped() const { return skipped_; }  // of adapters, other sizes, over the bound
  uint64_t unknown_extra() const { return unknown_extra_; }
  // The salt of our hashes for a prompt of that adapter ("": the model itself) and cache salt.
  // Engines that tell no salts have all of them in one.
  std::string chain_salt(const std::string& adapter, const std::string& salt) const;
  // Our hash of a block with that content beside its tokens (external_events.h); "": none.
  static BlockHash chain(const BlockHash& parent, std::span<const int32_t> tokens,
                         std::string_view content);

  enum Medium : uint8_t { kGpu = 1, kCpu = 2, kDisk = 4, kAny = 7 };
  // Leading blocks of a prompt that it holds in one of `media`: by our tags, or by its own names.
  size_t match(std::span<const uint64_t> tags, uint8_t media) const;
  size_t match_names(std::span<const uint64_t> names, uint8_t media) const;

 private:
  struct Known {
    BlockHash hash;
    uint8_t media = 0;
    uint32_t names = 0;  // of the engine, for this block
  };
  void store(const ExternalEvent& e);
  BlockHash hash_of(const ExternalEvent& e, size_t block, BlockHash parent);
  void remove(const ExternalEvent& e);
  void drop(uint64_t tag);

  sched::PrefixIndex& index_;
  const sched::PrefixIndex::Slot slot_;
  uint32_t block_tokens_;
  const size_t blocks_max_;
  std::unordered_map<uint64_t, uint64_t> tags_;  // by the engine's name
  std::unordered_map<uint64_t, Known> blocks_;   // by tag
  uint64_t orphans_ = 0, skipped_ = 0, unknown_extra_ = 0;
  bool tells_salts_ = false;
  std::set<int64_t> other_groups_;  // of attention that is not full
};

}  // namespace mc::serve
