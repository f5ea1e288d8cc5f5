#include "xfer/memory/buffer_backend.h"

#include <array>
#include <vector>

namespace mc::xfer {
namespace {

constexpr size_t kSlotBytes = 256 * 1024;

class PlainStream final : public StagingStream {
 public:
  explicit PlainStream(BufferBackend& backend) : backend_(backend), memory_(kSlots * kSlotBytes) {}
  std::span<std::byte> slot(size_t i) override {
    return std::span(memory_).subspan(i * kSlotBytes, kSlotBytes);
  }
  void start(size_t i, size_t from, bool write, uint64_t at, size_t bytes) override {
    if (!outcomes_[i]) return;
    const auto piece = slot(i).subspan(from, bytes);
    outcomes_[i] = write ? backend_.write(at, piece) : backend_.read(at, piece);
  }
  Result<> finish(size_t i) override { return std::exchange(outcomes_[i], Result<>()); }

 private:
  BufferBackend& backend_;
  std::vector<std::byte> memory_;
  std::array<Result<>, kSlots> outcomes_;
};

}  // namespace

std::unique_ptr<StagingStream> BufferBackend::staging_stream() {
  return std::make_unique<PlainStream>(*this);
}

Result<> BufferBackend::move(const CopyDescriptor&) {
  return fail(Code::kUnsupported, "this memory cannot be copied in rows");
}

Result<DmaBuf> BufferBackend::dma_buf(uint64_t) {
  return fail(Code::kUnsupported, "there is no dma-buf of this memory");
}

}  // namespace mc::xfer
