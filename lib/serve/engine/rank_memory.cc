#include "serve/engine/rank_memory.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <new>
#include <thread>
#include <utility>

#include "base/units.h"

namespace mc::serve {
namespace {

constexpr int kRankSpins = 2000;                 // tens of microseconds; then a rank sleeps
constexpr size_t kOffsetsMin = size_t{1} << 16;  // of blocks, in a pass
constexpr size_t kPageBytes = 4096;

size_t pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  static_assert(sizeof word == sizeof(uint32_t));
  (void)::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

struct RankMemory::Header {
  std::atomic<uint32_t> round{0};     // one for each wait() of all ranks
  std::atomic<uint32_t> arrived{0};   // ranks that wait for its end
  std::atomic<uint32_t> sleepers{0};  // of these, those that may sleep
  Command command;
};

RankMemory::Layout::Layout(const model::ModelConfig& c, uint32_t block_tokens_)
    : hidden(c.hidden), block_tokens(block_tokens_) {
  const size_t widest =
      std::max({c.mixed_rows(), c.hidden, c.intermediate, c.experts.inner, c.experts.shared});
  offsets = std::max<size_t>(kOffsetsMin, c.context_max / block_tokens + 1);
  floats = std::max<size_t>(kRows * widest, c.vocab);
  slices_at = pages(sizeof(Header));
  offsets_at = slices_at + pages(kRows * sizeof(SharedSlice));
  x_at = offsets_at + pages(offsets * sizeof(uint64_t));
  gathered_at = x_at + pages(size_t{kRows} * hidden * sizeof(float));
  bytes = gathered_at + 2 * pages(floats * sizeof(float));
}

Result<std::unique_ptr<RankMemory>> RankMemory::create(const model::ModelConfig& config,
                                                       uint32_t block_tokens, uint32_t ranks) {
  std::unique_ptr<RankMemory> self(new RankMemory({config, block_tokens}, {0, ranks}));
  io::Fd file(::memfd_create("mc-ranks", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(self->layout_.bytes)) != 0)
    return fail_errno("shared memory of %u ranks", ranks);
  MC_TRY_(self->map(std::move(file)));
  new (self->data_) Header;
  return self;
}

Result<std::unique_ptr<RankMemory>> RankMemory::attach(const model::ModelConfig& config,
                                                       uint32_t block_tokens, model::TpShare share,
                                                       io::Fd file) {
  std::unique_ptr<RankMemory> self(new RankMemory({config, block_tokens}, share));
  struct stat is {};
  if (::fstat(file.get(), &is) != 0) return fail_errno("shared memory of rank %u", share.rank);
  if (static_cast<uint64_t>(is.st_size) != self->layout_.bytes)
    return fail(Code::kInvalid,
                "shared memory of rank %u has %llu bytes, its model wants %llu: the model changed "
                "while the worker started",
                share.rank, static_cast<unsigned long long>(is.st_size),
                static_cast<unsigned long long>(self->layout_.bytes));
  MC_TRY_(self->map(std::move(file)));
  return self;
}

Result<> RankMemory::map(io::Fd file) {
  void* const p = ::mmap(nullptr, layout_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (p == MAP_FAILED)
    return fail_errno("map %s that ranks share", rounded_bytes_text(layout_.bytes).c_str());
  data_ = static_cast<std::byte*>(p);
  file_ = std::move(file);
  spins_ = share_.ranks <= std::thread::hardware_concurrency();
  return {};
}

RankMemory::~RankMemory() {
  if (data_ != nullptr) ::munmap(data_, layout_.bytes);
}

RankMemory::Command& RankMemory::command() { return header().command; }

// A barrier. The last rank to arrive begins the next round.
void RankMemory::wait() {
  Header& h = header();
  const uint32_t round = h.round.load();
  if (h.arrived.fetch_add(1) + 1 == share_.ranks) {
    h.arrived.store(0);
    h.round.store(round + 1);
    if (h.sleepers.load() > 0) futex(h.round, FUTEX_WAKE, INT_MAX);
    return;
  }
  for (int i = 0; spins_ && i < kRankSpins; ++i) {
    if (h.round.load() != round) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  h.sleepers.fetch_add(1);
  while (h.round.load() == round) futex(h.round, FUTEX_WAIT, round);
  h.sleepers.fetch_sub(1);
}

// There are two buffers: a rank writes one while others may still read the one before. It writes
// that again only after a wait() in which all have arrived that read it.
const float* RankMemory::gather(const float* own, size_t rows, size_t total) {
  MC_CHECK(rows * total <= layout_.floats);
  const size_t begin = share_.begin(total), columns = share_.end(total) - begin;
  float* const all =
      at<float>(layout_.gathered_at + gathered_++ % 2 * pages(layout_.floats * sizeof(float)));
  for (size_t r = 0; r < rows; ++r)
    std::copy_n(own + r * columns, columns, all + r * total + begin);
  wait();
  return all;
}

void RankMemory::put(std::span<const model::Slice> slices, const float* x, const std::byte* pool) {
  auto* shared = at<SharedSlice>(layout_.slices_at);
  auto* const offsets = at<uint64_t>(layout_.offsets_at);
  size_t blocks = 0, rows = 0;
  for (const model::Slice& s : slices) {
    *shared++ = {s.begin, s.end, blocks, s.blocks.size()};
    MC_CHECK(blocks + s.blocks.size() <= layout_.offsets);
    for (const std::byte* block : s.blocks) offsets[blocks++] = static_cast<uint64_t>(block - pool);
    rows += s.end - s.begin;
  }
  MC_CHECK(rows <= kRows && slices.size() <= kRows);
  std::copy_n(x, rows * layout_.hidden, at<float>(layout_.x_at));
  command().rows = static_cast<uint32_t>(rows);
  command().slices = static_cast<uint32_t>(slices.size());
}

std::vector<model::Slice> RankMemory::slices(std::byte* pool, std::vector<std::byte*>& to) const {
  const std::span shared(at<const SharedSlice>(layout_.slices_at), header().command.slices);
  const auto* const offsets = at<const uint64_t>(layout_.offsets_at);
  to.clear();
  for (const SharedSlice& s : shared)
    for (size_t i = 0; i < s.blocks; ++i) to.push_back(pool + offsets[s.first_block + i]);
  std::vector<model::Slice> out;
  for (const SharedSlice& s : shared)
    out.push_back({std::span(to).subspan(s.first_block, s.blocks), s.begin, s.end});
  return out;
}

const float* RankMemory::x() const { return at<const float>(layout_.x_at); }

}  // namespace mc::serve
