// What a simulated node caches: KV in DRAM (the block manager of the live programs), of that the
// hottest in VRAM too, and on an SSD what fell out of DRAM.
//
//   lru       classes do not count: every block that falls out of DRAM goes to the SSD, if there is
//             one, and the least recently used one there goes for good
//   filter    the blocks that an ephemeral request computes are not kept
//   semantic  that, and the SSD is for context blocks only: those of long-lived contexts, which
//             leave DRAM for the SSD and never for nothing, as long as it has room
//   tiered    filter, and the SSD is for all that is kept; contexts are the last to leave it
//
// A prompt finds its leading blocks wherever they are. What it found on the SSD is in DRAM again
// when it ends; what is in VRAM needs no loading.
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

// Of a prompt's full blocks, as good as random.
std::vector<BlockHash> block_hashes(const trace::TraceRequest& record, uint64_t block_tokens);

class NodeCache {
 public:
  NodeCache(NodeCacheOptions options, uint64_t seed);

  struct Found {                           // leading blocks; never the whole prompt
    uint64_t vram = 0, dram = 0, ssd = 0;  // dram: without those in VRAM
    uint64_t blocks() const { return vram + dram + ssd; }
  };
  Found look(const std::vector<BlockHash>& hashes, uint64_t tokens) const;
  // Holds room for a prompt and what it found. 0: there is none, and it goes uncached.
  serve::TxId begin(const std::vector<BlockHash>& hashes, uint64_t tokens, Time now);
  // Its blocks are cached, as their class allows.
  void end(serve::TxId tx, const std::vector<BlockHash>& hashes, trace::CacheClass of);

  struct Change {
    uint64_t tag;
    bool stored;  // else it is in no tier any more
  };
  std::vector<Change> changes();  // since the last call
  void lose_memory();             // the process ended; what is on the SSD stays
  void lose_all();                // that, too, is gone
  std::vector<uint64_t> tags() const;

  uint64_t dram_used() const;
  uint64_t vram_used() const { return vram_.size(); }
  uint64_t ssd_used() const { return ssd_.size() + ssd_kept_.size(); }

 private:
  // Blocks by last use.
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
  Lru vram_, ssd_, ssd_kept_;              // kept: contexts, where other blocks are there too
  std::unordered_set<BlockHash> context_;  // blocks of that class, in any tier
  std::vector<Change> changes_;
};

}  // namespace mc::sim
