#include "serve/runtime/worker_core.h"

#include <utility>

namespace mc::serve {

Result<std::shared_ptr<WorkerCore>> WorkerCore::open(io::Loop& loop, xfer::Engine& transfer,
                                                     const Engine& engine, uint32_t blocks,
                                                     uint64_t seed) {
  const uint64_t block_bytes = engine.spec().block_bytes(engine.block_tokens());
  const uint64_t bytes = blocks_at() + blocks * block_bytes;
  MC_TRY(io::Fd file, engine.pool_file());
  MC_TRY(xfer::Memory memory, file ? transfer.allocate_from({.file = std::move(file)}, bytes)
                                   : transfer.allocate(bytes));
  engine.use_pool({memory.data(), bytes});
  return std::shared_ptr<WorkerCore>(
      new WorkerCore(loop, std::move(memory), block_bytes, blocks, engine.block_tokens(), seed));
}

}  // namespace mc::serve
