// Caches KV blocks in device memory from one pass to the next. Blocks of host memory stay complete:
// what a pass writes is copied there at once. A lookup is by content, a block's tokens and the
// digest that they chain on, not by address. So code that moves, shares or reuses host blocks need
// not tell the cache.
//
// A pass claims a slot for each of its blocks. Blocks that are resident are hits. The others take
// free slots, or evict the least recently used. A block without a slot is streamed: two of its
// layers at a time have space in a shared slot. A pass that the cache is too small for gets no
// claim. A claim holds its slots. What it writes or uploads becomes visible to others when it is
// committed, and is dropped otherwise.
//
// Requires: the cache outlives its claims. Errors: none. Thread: any. Source: design, "tiers";
// PagedAttention (Kwon et al. 2023), section 4.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "device/device.h"
#include "model/forward/transformer.h"

namespace mc::gpu {

// What a slice's sequence holds, from position 0 to the slice's end. `parents` as in
// serve::SequenceView; a digest of zeros after the first says that it is not known.
struct Content {
  std::span<const int32_t> tokens{};
  std::span<const BlockHash> parents{};
};

class VramBlockCache {
 public:
  struct Shape {
    uint64_t layer_bytes = 0;  // of a block
    uint32_t layers = 0, block_tokens = 0;
    uint64_t slot_bytes() const { return layers * layer_bytes; }
  };
  // Where a block of a pass lies: an offset into the cache's memory. Its layer l is at + l x
  // layer_bytes, or, if it is streamed, + l % 2 x layer_bytes.
  struct BlockSlot {
    uint64_t at = 0;
    bool streamed = false;
    bool there = false;  // resident: what precedes the pass's rows needs no upload
  };
  struct Counts {
    uint64_t slots = 0, used = 0;  // used: with blocks that other passes can find
    uint64_t hits = 0, uploads = 0, streamed = 0, evictions = 0;  // blocks since the start
  };
  class Claim {
   public:
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    const std::vector<BlockSlot>& block_slots() const {
      return block_slots_;
    }  // block after block of the slices
    bool streams() const { return streams_; }
    // The pass has ended: its blocks hold the tokens that it named.
    void commit();

   private:
    friend class VramBlockCache;
    struct Held {
      uint32_t slot = 0;
      bool shared = false;  // other claims read it too: unchanged on release
      bool known = false;
      BlockHash parent{};
      std::vector<int32_t> tokens{};  // when committed
    };
    explicit Claim(VramBlockCache& tier) : cache_(tier) {}
    VramBlockCache& cache_;
    std::vector<BlockSlot> block_slots_;
    std::vector<Held> held_;
    bool streams_ = false;
  };

  // The slots that fit into the memory; at least one, of two layers or more.
  VramBlockCache(device::Memory memory, const Shape& shape);
  std::byte* data() const { return memory_.data(); }
  // Null: the cache is too small for this pass.
  std::unique_ptr<Claim> claim(std::span<const model::Slice> slices,
                               std::span<const Content> contents);
  Counts counts() const;

 private:
  struct Slot {
    BlockHash parent{};
    std::vector<int32_t> tokens{};
    uint32_t holders = 0;  // claims that read it
    bool listed = false;   // in index_
    uint64_t touched = 0;  // key in unused_, if no claim holds it
  };
  struct Wanted;
  std::optional<uint32_t> find(const Wanted& w) MC_REQUIRES(mutex_);
  uint32_t take() MC_REQUIRES(mutex_);
  void list(uint32_t slot) MC_REQUIRES(mutex_);
  void unlist(uint32_t slot) MC_REQUIRES(mutex_);
  void make_evictable(uint32_t slot) MC_REQUIRES(mutex_);
  void release(std::vector<Claim::Held>& held, bool committed);
  std::optional<size_t> to_stream(size_t missing) const MC_REQUIRES(mutex_);
  void forgo(uint32_t slot, bool written) MC_REQUIRES(mutex_);

  const device::Memory memory_;
  const Shape shape_;
  mutable Mutex mutex_;
  std::vector<Slot> slots_ MC_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ MC_GUARDED_BY(mutex_);
  std::map<uint64_t, uint32_t> unused_ MC_GUARDED_BY(mutex_);                // by the last touch
  std::unordered_multimap<uint64_t, uint32_t> index_ MC_GUARDED_BY(mutex_);  // by parent's tag
  uint64_t touches_ MC_GUARDED_BY(mutex_) = 0;
  Counts counts_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::gpu
