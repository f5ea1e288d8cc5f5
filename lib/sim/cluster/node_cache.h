// Simulates a node's KV cache in DRAM, VRAM and SSD.
// DRAM is the block manager of the live programs. VRAM has copies of its hottest blocks. The SSD
// has blocks that fell out of DRAM. The rules:
//
//   lru       ignores classes: every block that falls out of DRAM goes to the SSD, if there is one,
//             and the SSD evicts its least recently used
//   filter    does not keep the blocks that an ephemeral request computes
//   semantic  filter, and the SSD holds context blocks only: blocks of long-lived contexts. They
//   leave
//             DRAM for the SSD and are lost only when it is full
//   tiered    filter, and the SSD holds all other blocks; it evicts contexts last
//
// A prompt finds its leading blocks in any tier. Blocks that it found on the SSD are in DRAM again
// when it ends. Blocks in VRAM need no loading.
//
// Thread: one owner. Pure: time is an argument. Units: blocks.
// Source: Mooncake, section 5.2.
#pragma once
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "serve/kvcache/block_manager.h"
#include "trace/records/records.h"

namespace mc::sim {

inline const std::vector<std::string> kCacheRules = {"lru", "filter", "semantic", "tiered"};

struct NodeCacheOptions {
  uint64_t vram = 0, dram = 0, ssd = 0;  // blocks; VRAM holds copies of blocks in DRAM
  uint64_t block_tokens = 0;
  uint64_t prompt_max = 0;  // blocks of the longest prompt
  std::string rule = "lru";
};

// Pseudo-random hashes of a prompt's full blocks.
std::vector<BlockHash> block_hashes(const trace::TraceRequest& record, uint64_t block_tokens);

class NodeCache {
 public:
  NodeCache(NodeCacheOptions options, uint64_t seed);

  struct Found {                           // leading blocks; never the whole prompt
    uint64_t vram = 0, dram = 0, ssd = 0;  // dram: without those in VRAM
    uint64_t blocks() const { return vram + dram + ssd; }
  };
  Found look(const std::vector<BlockHash>& hashes, uint64_t tokens) const;
  // Reserves room for a prompt and pins the blocks it found. 0: no room, the prompt stays uncached.
  serve::TxId begin(const std::vector<BlockHash>& hashes, uint64_t tokens, Time now);
  // Pins the leading blocks of a prompt that are in DRAM. Takes room for those behind them, up to
  // `blocks` in all, as far as there is some: they come from elsewhere. 0: for nothing.
  serve::TxId hold(const std::vector<BlockHash>& hashes, uint64_t tokens, uint64_t blocks,
                   Time now);
  // The prompt's first blocks are computed, or came: others find them while it goes on.
  void computed(serve::TxId tx, uint64_t blocks, trace::CacheClass of);
  // Takes what others computed of the prompt since. Returns the leading blocks that it has.
  uint64_t rematch(serve::TxId tx) { return dram_->rematch(tx); }
  // Caches its blocks, as their class allows.
  void end(serve::TxId tx, const std::vector<BlockHash>& hashes, trace::CacheClass of);

  void drop(serve::TxId tx);  // the prompt was given up, or what was held; 0: nothing

  struct Change {
    uint64_t tag;
    bool stored;  // false: it has left every tier
  };
  std::vector<Change> changes();  // since the last call
  void lose_memory();             // the process ended; the SSD keeps its blocks
  void lose_all();                // the SSD too
  std::vector<uint64_t> tags() const;

  uint64_t dram_used() const;
  uint64_t vram_used() const { return vram_.size(); }
  uint64_t ssd_used() const { return ssd_.size() + ssd_kept_.size(); }

 private:
  // Blocks in order of last use.
  class Lru {
   public:
    bool has(const BlockHash& h) const { return at_.contains(h); }
    void touch(const BlockHash& h);
    void erase(const BlockHash& h);
    BlockHash take_oldest();
    uint64_t size() const { return at_.size(); }
    const std::list<BlockHash>& all() const { return order_; }

   private:
    std::list<BlockHash> order_;  // the youngest first
    std::unordered_map<BlockHash, std::list<BlockHash>::iterator> at_;
  };
  void drain();
  void fell_out(const BlockHash& hash);
  bool on_ssd(const BlockHash& h) const { return ssd_.has(h) || ssd_kept_.has(h); }

  NodeCacheOptions o_;
  uint64_t seed_;
  std::optional<serve::BlockManager> dram_;
  uint64_t seen_ = 0;                      // events of it
  Lru vram_, ssd_, ssd_kept_;              // kept: contexts, when the SSD also has other blocks
  std::unordered_set<BlockHash> context_;  // blocks of that class, in any tier
  std::vector<Change> changes_;
};

// What a prompt keeps of a node's memory before it begins there, or while another node fetches it.
// Without a cache it keeps nothing. What a failed node had is lost: dropping it does nothing.
class CacheHold {
 public:
  CacheHold() = default;
  // In place of what it had; NodeCache::hold().
  void take(NodeCache* cache, const std::vector<BlockHash>& hashes, uint64_t tokens,
            uint64_t blocks, Time now) {
    CacheHold before = *this;
    *this = {cache, cache != nullptr ? cache->hold(hashes, tokens, blocks, now) : 0};
    before.drop();
  }
  // The first blocks of what is held.
  void came(uint64_t blocks, trace::CacheClass of) const {
    if (cache_ != nullptr) cache_->computed(tx_, blocks, of);
  }
  void drop() {
    if (cache_ != nullptr) cache_->drop(tx_);
    *this = {};
  }

 private:
  CacheHold(NodeCache* cache, serve::TxId tx) : cache_(cache), tx_(tx) {}
  NodeCache* cache_ = nullptr;  // outlives this
  serve::TxId tx_ = 0;
};

}  // namespace mc::sim
