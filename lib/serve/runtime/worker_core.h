// What a worker process's role instances share: KV block pool and compute thread.
// It also has the time until which the modelled device is busy. A prefill worker has one core, a
// decode worker has one; a worker with both roles has one core for the two. There, decode steps and
// chunks of prompts take turns on the thread, and a prompt's blocks need not move.
//
// The first instance that ends calls close(), which stops the computing: no completion runs after
// it. Memory and blocks stay until the last instance is gone.
//
// Thread: the loop's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "serve/engine/engine.h"
#include "serve/kvcache/block_manager.h"
#include "serve/runtime/compute_thread.h"
#include "xfer/engine.h"

namespace mc::serve {

class WorkerCore {
 public:
  static constexpr size_t kGuardWords = 4096;  // reservations at a time

  // `seed`: differs in each process. Errors: kNoSpace for a pool that does not fit.
  static Result<std::shared_ptr<WorkerCore>> open(io::Loop& loop, xfer::Engine& transfer,
                                                  const Engine& engine, uint32_t blocks,
                                                  uint64_t seed);

  BlockManager& blocks() { return blocks_; }
  std::byte* block(BlockId id) { return memory_.data() + blocks_at() + id * block_bytes_; }
  uint64_t block_offset(BlockId id) const {
    return memory_.offset() + blocks_at() + id * block_bytes_;
  }
  uint64_t block_bytes() const { return block_bytes_; }
  const xfer::Memory& memory() const { return memory_; }
  std::byte* guard_word(size_t slot) { return memory_.data() + slot * 8; }
  uint64_t guard_offset(size_t slot) const { return memory_.offset() + slot * 8; }

  // As ComputeThread::submit; false too when it is closed.
  [[nodiscard]] bool submit(ComputeThread::Work work, ComputeThread::Work done) {
    return compute_ && compute_->submit(std::move(work), std::move(done));
  }
  size_t room() const { return compute_ ? compute_->room() : 0; }
  void close() { compute_.reset(); }

  Time free_at{};  // when the modelled device finishes the work begun

 private:
  WorkerCore(io::Loop& loop, xfer::Memory memory, uint64_t block_bytes, uint32_t blocks,
             uint32_t block_tokens, uint64_t seed)
      : block_bytes_(block_bytes), memory_(std::move(memory)), blocks_(blocks, block_tokens, seed) {
    compute_.emplace(loop);
  }
  static uint64_t blocks_at() { return kGuardWords * 8; }

  const uint64_t block_bytes_;
  xfer::Memory memory_;  // guard words, then blocks
  BlockManager blocks_;
  std::optional<ComputeThread> compute_;
};

}  // namespace mc::serve
