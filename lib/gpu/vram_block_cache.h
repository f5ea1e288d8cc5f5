// KV blocks that stay in a device's memory from one pass to the next: a tier above the blocks of
// host memory, which keep everything (what a pass writes goes there at once). Whoever moves, shares
// or reuses host blocks need not know of it: a block is found here by what it holds, its tokens and
// what they chain on, not by where it lies.
//
// A pass claims a place for each of its blocks. Blocks that are here are hits; for the others,
// slots are free or those used longest ago; what has no slot is streamed: two layers of it at a
// time have a place, in a slot that is shared. A pass that a tier this small cannot serve gets
// nothing. A claim holds its slots; what it writes or uploads is found by others once it was
// committed, and is dropped if it never is.
//
// Thread: any; claims outlive no tier. Errors: none. Source: design, "tiers"; PagedAttention (Kwon
// et al. 2023), section 4.
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
  // Where a block of a pass lies, from the tier's memory on. Layer l of it: + l x layer_bytes, or,
  // streamed, + l % 2 x layer_bytes.
  struct BlockSlot {
    uint64_t at = 0;
    bool streamed = false;
    bool there = false;  // what comes before the pass's rows needs no upload
  };
  struct Counts {
    uint64_t slots = 0, used = 0;  // used: with blocks that others may find
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
    // The pass is through: its blocks hold what it says.
    void commit();

   private:
    friend class VramBlockCache;
    struct Held {
      uint32_t slot = 0;
      bool shared = false;  // found by others too: it stays as it is
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
  // Null: too small for these.
  std::unique_ptr<Claim> claim(std::span<const model::Slice> slices,
                               std::span<const Content> contents);
  Counts counts() const;

 private:
  struct Slot {
    BlockHash parent{};
    std::vector<int32_t> tokens{};
    uint32_t holders = 0;  // claims that read it
    bool listed = false;   // in index_
    uint64_t touched = 0;  // in unused_, if nobody holds it
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
