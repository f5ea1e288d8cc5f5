#include "serve/engine/rank_group.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

namespace mc::serve {
namespace {

using Work = RankMemory::Work;

// A rank's share of a pass. `logits`: of the first rank alone.
void compute_share(const model::Transformer& t, RankMemory& memory,
                   const RankMemory::Command& command, std::span<const model::Slice> slices,
                   float* x, float* logits) {
  for (uint32_t layer = command.first_layer; layer < command.last_layer; ++layer)
    t.layer(layer, slices, x, command.kv_only != 0);
  if (command.logits == 0) return;
  const size_t vocab = t.config().vocab, at_once = memory.rows_for(vocab);
  for (size_t row = 0; row < command.rows; row += at_once)
    t.logits(x + row * memory.hidden(), std::min<size_t>(at_once, command.rows - row),
             logits == nullptr ? nullptr : logits + row * vocab);
}

}  // namespace

RankGroup::RankGroup(std::unique_ptr<RankMemory> memory, SendPool send_pool,
                     std::shared_ptr<void> owner)
    : owner_(std::move(owner)), memory_(std::move(memory)), send_pool_(std::move(send_pool)) {}

Result<io::Fd> RankGroup::pool_file() {
  pool_file_.reset(::memfd_create("mc-pool", MFD_CLOEXEC));
  io::Fd copy(pool_file_ ? ::fcntl(pool_file_.get(), F_DUPFD_CLOEXEC, 0) : -1);
  if (!copy) return fail_errno("memfd of the ranks' KV pool");
  return copy;
}

void RankGroup::use_pool(std::span<std::byte> pool) {
  Lock lock(mutex_);
  MC_CHECK(pool_file_);
  send_pool_(pool_file_.get());
  pool_ = pool;
  RankMemory::Command& command = memory_->command();
  command = {};
  command.work = Work::kPool;
  command.pool_bytes = pool.size();
  memory_->wait();
  memory_->wait();
  pool_file_.reset();
}

// Pieces of slices go one after the other: what a piece sees of its sequence was computed before.
void RankGroup::run(const model::Transformer& first, const Pass& pass) {
  Lock lock(mutex_);
  Pass rest = pass;
  std::vector<model::Slice> piece;
  size_t rows = 0, blocks = 0;
  const auto flush = [&]() MC_REQUIRES(mutex_) {
    if (piece.empty()) return;
    rest.slices = piece;
    run_piece(first, rest);
    rest.x += rows * memory_->hidden();
    if (rest.logits != nullptr) rest.logits += rows * first.config().vocab;
    piece.clear();
    rows = blocks = 0;
  };
  for (const model::Slice& s : pass.slices)
    for (size_t at = s.begin; at < s.end;) {
      const size_t end = std::min<size_t>(s.end, at + RankMemory::kRows - rows);
      const size_t wanted = memory_->blocks_for(end);
      if (rows == RankMemory::kRows ||
          (!piece.empty() && blocks + wanted > memory_->blocks_max())) {
        flush();
        continue;
      }
      piece.push_back({s.blocks.first(wanted), at, end});
      rows += end - at;
      blocks += wanted;
      at = end;
    }
  flush();
}

void RankGroup::run_piece(const model::Transformer& first, const Pass& pass) {
  for (const model::Slice& s : pass.slices)
    for (const std::byte* block : s.blocks)
      MC_CHECK(block >= pool_.data() && block < pool_.data() + pool_.size());
  RankMemory::Command& command = memory_->command();
  command = {};
  command.work = Work::kPass;
  command.first_layer = pass.first_layer;
  command.last_layer = pass.last_layer;
  command.kv_only = pass.kv_only ? 1 : 0;
  command.logits = pass.logits != nullptr ? 1 : 0;
  memory_->put(pass.slices, pass.x, pool_.data());
  memory_->wait();
  compute_share(first, *memory_, command, pass.slices, pass.x, pass.logits);
  memory_->wait();  // all have written their KV
}

void RankGroup::stop() {
  Lock lock(mutex_);
  memory_->command() = {};
  memory_->wait();
}

void follow(const model::Transformer& rank, RankMemory& memory, uint64_t part_bytes,
            const std::function<std::byte*(uint64_t bytes)>& map_pool) {
  std::byte* part = nullptr;  // this rank's, of the pool's first block
  std::vector<std::byte*> blocks;
  std::vector<float> x;
  while (true) {
    memory.wait();
    const RankMemory::Command command = memory.command();
    if (command.work == Work::kStop) return;
    if (command.work == Work::kPool) {
      std::byte* const pool = map_pool(command.pool_bytes);
      if (pool == nullptr) return;
      part = pool + memory.share().rank * part_bytes;
    } else {
      x.assign(memory.x(), memory.x() + size_t{command.rows} * memory.hidden());
      compute_share(rank, memory, command, memory.slices(part, blocks), x.data(), nullptr);
    }
    memory.wait();
  }
}

}  // namespace mc::serve
