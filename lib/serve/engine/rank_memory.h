// Shared memory through which the tensor-parallel ranks of a worker compute one pass after another.
// The first rank writes a command; all gather their numbers here, and wait for each other.
//
// The memory is a memfd: the first rank makes it, the others inherit it. Its size follows from the
// model, and each rank checks it. Rows and numbers take room only once they are used.
//
// Requires: all ranks of one build. A rank that ends leaves the others waiting: their process must
// notice (rank_processes.h).
// Thread: one of each rank.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "io/fd.h"
#include "model/forward/tensor_parallel.h"
#include "model/forward/transformer.h"

namespace mc::serve {

class RankMemory final : public model::RankExchange {
 public:
  static constexpr uint32_t kRows = 512;  // of a pass; more are computed in several

  // The first rank's, with a new memfd. `config`: the whole model's.
  static Result<std::unique_ptr<RankMemory>> create(const model::ModelConfig& config,
                                                    uint32_t block_tokens, uint32_t ranks);
  // Another rank's. Errors: kInvalid for a memfd of another model.
  static Result<std::unique_ptr<RankMemory>> attach(const model::ModelConfig& config,
                                                    uint32_t block_tokens, model::TpShare share,
                                                    io::Fd file);
  ~RankMemory() override;
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  int file() const { return file_.get(); }
  model::TpShare share() const override { return share_; }
  const float* gather(const float* own, size_t rows, size_t total) override;
  void wait() override;

  enum class Work : uint32_t { kPass, kPool, kStop };
  struct Command {
    Work work = Work::kStop;
    uint32_t first_layer = 0, last_layer = 0;  // [first, last)
    uint32_t rows = 0, slices = 0;
    uint32_t kv_only = 0, logits = 0;
    uint64_t pool_bytes = 0;  // of kPool
  };
  // Of the first rank, before wait() begins the command; of the others, after it.
  Command& command();
  // Writes the pass's rows ([rows][hidden]) and slices; blocks as offsets in the pool.
  void put(std::span<const model::Slice> slices, const float* x, const std::byte* pool);
  // The slices of the command, with the blocks' addresses in `at`; pool: where the pool, or this
  // rank's part of its first block, is mapped.
  std::vector<model::Slice> slices(std::byte* pool, std::vector<std::byte*>& at) const;
  const float* x() const;
  // Limits of a pass.
  size_t blocks_max() const { return layout_.offsets; }
  size_t blocks_for(size_t positions) const {
    return (positions + layout_.block_tokens - 1) / layout_.block_tokens;
  }
  // Rows whose `columns` can be gathered at once.
  size_t rows_for(size_t columns) const { return layout_.floats / columns; }
  uint32_t hidden() const { return layout_.hidden; }

 private:
  struct Header;
  struct SharedSlice {
    uint64_t begin, end, first_block, blocks;
  };
  // Where what is in the memory.
  struct Layout {
    Layout(const model::ModelConfig& config, uint32_t block_tokens);
    uint32_t hidden, block_tokens;
    size_t offsets, floats;  // of blocks; of one of the two buffers of gather()
    size_t slices_at, offsets_at, x_at, gathered_at, bytes;
  };
  RankMemory(Layout layout, model::TpShare share) : layout_(layout), share_(share) {}
  Result<> map(io::Fd file);
  Header& header() const { return *reinterpret_cast<Header*>(data_); }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

  const Layout layout_;
  const model::TpShare share_;
  io::Fd file_;
  std::byte* data_ = nullptr;
  uint64_t gathered_ = 0;  // calls of gather(): which buffer is next
  bool spins_ = false;     // each rank may have a CPU of its own
};

}  // namespace mc::serve
