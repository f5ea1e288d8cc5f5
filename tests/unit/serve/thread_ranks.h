// Tensor-parallel ranks as threads of one process, over the shared memory that processes have.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "serve/engine/cpu_engine.h"
#include "serve/engine/pool_mapping.h"

namespace mc::serve {

class ThreadRanks {
 public:
  ThreadRanks(const model::ModelConfig& config, const model::WeightSources& whole,
              model::KvFormat kv, uint32_t block, uint32_t ranks) {
    auto memory = RankMemory::create(config, block, ranks);
    REQUIRE(memory);
    const auto spec = model::spec_of(config, kv);
    const bool latent = config.latent.kv_rank > 0;
    for (uint32_t rank = 1; rank < ranks; ++rank)
      others_.push_back(std::make_unique<Other>(config, whole, model::KvLayout{kv, block}, rank,
                                                ranks, (*memory)->file()));
    for (auto& other : others_)
      other->thread =
          std::thread([o = other.get(), ranks, latent, bytes = spec.block_bytes(block)] {
            follow(*o->transformer, *o->memory, latent ? 0 : bytes / ranks,
                   [o](uint64_t n) { return o->map(n); });
          });
    const auto send = [this](int file) {
      for (auto& other : others_) other->take(file);
    };
    auto group = std::make_unique<RankGroup>(std::move(*memory), send);
    group_ = group.get();
    auto threads = std::make_unique<model::ThreadPool>(1);
    auto weights = model::pack_weights(model::share_of(whole, config, {0, ranks}),
                                       model::DType::kF32, *threads);
    engine_ = std::make_unique<CpuEngine>(
        spec, config, std::move(weights), model::KvLayout{kv, block, 0, latent ? 1 : ranks},
        *model::kernels_named("auto"), std::move(threads), model::DType::kF32, std::move(group));
  }
  ~ThreadRanks() {
    group_->stop();
    for (auto& other : others_) other->thread.join();
  }
  const CpuEngine& engine() const { return *engine_; }

 private:
  struct Other {
    Other(const model::ModelConfig& config, const model::WeightSources& whole, model::KvLayout kv,
          uint32_t rank, uint32_t ranks, int file)
        : threads(1) {
      const model::TpShare share{rank, ranks};
      auto attached = RankMemory::attach(config, kv.block_tokens, share,
                                         io::Fd(::fcntl(file, F_DUPFD_CLOEXEC, 0)));
      REQUIRE(attached);
      memory = std::move(*attached);
      auto weights =
          model::pack_weights(model::share_of(whole, config, share), model::DType::kF32, threads);
      transformer = std::make_unique<model::Transformer>(
          model::config_of(config, share), std::move(weights), kv, *model::kernels_named("auto"),
          threads, model::DType::kF32, memory.get());
    }
    void take(int file) {
      Lock lock(mutex);
      pool_file.reset(::fcntl(file, F_DUPFD_CLOEXEC, 0));
    }
    std::byte* map(uint64_t n) {
      Lock lock(mutex);
      return pool.map(pool_file.get(), n);
    }
    model::ThreadPool threads;
    std::unique_ptr<RankMemory> memory;
    std::unique_ptr<model::Transformer> transformer;
    Mutex mutex;
    io::Fd pool_file MC_GUARDED_BY(mutex);
    PoolMapping pool;
    std::thread thread;
  };

  std::vector<std::unique_ptr<Other>> others_;
  std::unique_ptr<CpuEngine> engine_;
  RankGroup* group_ = nullptr;
};

// A pool of an engine's blocks, as a worker has it.
class PoolOfBlocks {
 public:
  PoolOfBlocks(const Engine& engine, size_t blocks)
      : bytes_(engine.spec().block_bytes(engine.block_tokens())), size_(blocks * bytes_) {
    auto file = engine.pool_file();
    REQUIRE(file);
    if (*file) REQUIRE(::ftruncate(file->get(), static_cast<off_t>(size_)) == 0);
    void* const p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                           *file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file->get(), 0);
    REQUIRE(p != MAP_FAILED);
    memory_ = static_cast<std::byte*>(p);
    engine.use_pool({memory_, size_});
    for (size_t i = 0; i < blocks; ++i) blocks_.push_back(memory_ + i * bytes_);
  }
  ~PoolOfBlocks() { ::munmap(memory_, size_); }
  PoolOfBlocks(const PoolOfBlocks&) = delete;
  PoolOfBlocks& operator=(const PoolOfBlocks&) = delete;
  std::span<std::byte* const> blocks() const { return blocks_; }
  std::span<std::byte> block(size_t i) const { return {blocks_[i], bytes_}; }

 private:
  const size_t bytes_, size_;
  std::byte* memory_ = nullptr;
  std::vector<std::byte*> blocks_;
};

}  // namespace mc::serve
