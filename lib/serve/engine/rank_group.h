// Computes passes of a model on several tensor-parallel ranks. The first rank leads: it gives each
// pass to the others, which run follow() in processes of their own, and computes its share.
//
// All ranks map the pool of KV blocks. A rank reads and writes its own part of each block; with
// latent attention a block has one part, which the first rank writes and all read.
//
// Thread: calls of RankGroup from any, in turns; follow() holds its own.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "serve/engine/rank_memory.h"

namespace mc::serve {

class RankGroup {
 public:
  // Sends every other rank the pool's descriptor, for its `map_pool`.
  using SendPool = std::function<void(int file)>;
  // `owner` lives as long as the group: what ends the other ranks.
  RankGroup(std::unique_ptr<RankMemory> memory, SendPool send_pool,
            std::shared_ptr<void> owner = nullptr);

  RankMemory& memory() const { return *memory_; }
  // A memfd for the pool. Errors: those of memfd_create.
  Result<io::Fd> pool_file();
  // The pool, mapped here from pool_file(). Waits until all ranks have mapped it.
  void use_pool(std::span<std::byte> pool);

  // Computes layers [first, last) of the rows of `slices`, whose blocks lie in the pool.
  // `kv_only`, as Transformer::layer, is for one layer; `logits` ([rows][vocab]): nullptr, or all
  // layers are computed and then the logits.
  struct Pass {
    uint32_t first_layer = 0, last_layer = 0;
    std::span<const model::Slice> slices{};
    float* x = nullptr;
    bool kv_only = false;
    float* logits = nullptr;
  };
  void run(const model::Transformer& first, const Pass& pass);
  void stop();  // ends every follow(); for ranks that are threads

 private:
  void run_piece(const model::Transformer& first, const Pass& pass) MC_REQUIRES(mutex_);

  const std::shared_ptr<void> owner_;
  const std::unique_ptr<RankMemory> memory_;
  const SendPool send_pool_;
  Mutex mutex_;
  io::Fd pool_file_;
  std::span<std::byte> pool_ MC_GUARDED_BY(mutex_);
};

// What a rank but the first does until stop(). `part_bytes`: from one rank's part of a block to the
// next one's; 0 where a block has one part. `map_pool` maps the pool that was sent; nullptr ends
// follow().
void follow(const model::Transformer& rank, RankMemory& memory, uint64_t part_bytes,
            const std::function<std::byte*(uint64_t bytes)>& map_pool);

}  // namespace mc::serve
