// What an external engine caches, from its events: its own names of blocks are turned into our
// chained hashes, by the tokens that come with them, and those put into the prefix index. A block
// whose parent is unknown cannot be named and counts as an orphan; blocks of adapters and of
// another block size are skipped. A block that lies in several media is held until the last one
// drops it.
//
// Bounded: at most `blocks_max` blocks. Thread: the loop's.
#pragma once
#include <cstdint>
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
  void remove(const ExternalEvent& e);
  void drop(uint64_t tag);

  sched::PrefixIndex& index_;
  const sched::PrefixIndex::Slot slot_;
  uint32_t block_tokens_;
  const size_t blocks_max_;
  std::unordered_map<uint64_t, uint64_t> tags_;  // by the engine's name
  std::unordered_map<uint64_t, Known> blocks_;   // by tag
  uint64_t orphans_ = 0, skipped_ = 0;
};

}  // namespace mc::serve
