#include "serve/runtime/worker_core.h"

namespace mc::serve {

Result<std::shared_ptr<WorkerCore>> WorkerCore::open(io::Loop& loop, xfer::Engine& transfer,
                                                     const Engine& engine, uint32_t blocks,
                                                     uint64_t seed) {
  const uint64_t block_bytes = engine.spec().block_bytes(engine.block_tokens());
  MC_TRY(xfer::Memory memory, transfer.allocate(blocks_at() + blocks * block_bytes));
  engine.use_pool({memory.data(), blocks_at() + blocks * block_bytes});
  return std::shared_ptr<WorkerCore>(
      new WorkerCore(loop, std::move(memory), block_bytes, blocks, engine.block_tokens(), seed));
}

}  // namespace mc::serve
