#include "xfer/memory/memory_kind.h"

namespace mc::xfer {
namespace {

Failure kind_lacks(const char* what) {
  return fail(Code::kUnsupported, "this kind of memory %s", what);
}

}  // namespace

Result<> MemoryKind::move(const CopyDescriptor&) { return kind_lacks("cannot be copied in rows"); }
std::unique_ptr<StagingStream> MemoryKind::staging_stream(std::byte*) { return nullptr; }
Result<std::string> MemoryKind::locate(std::span<const std::byte>) {
  return kind_lacks("cannot be located by its address");
}
std::string MemoryKind::pci(const std::string&) const { return ""; }
Result<device::Memory> MemoryKind::allocate(const std::string&, uint64_t) {
  return kind_lacks("cannot be allocated by the engine");
}
Result<device::Memory> MemoryKind::pin(std::span<std::byte>) { return kind_lacks("pins nothing"); }
Result<std::string> MemoryKind::share(std::span<const std::byte>) {
  return kind_lacks("cannot be shared with other processes");
}
Result<device::Memory> MemoryKind::open(const std::string&, const std::string&) {
  return kind_lacks("cannot be shared with other processes");
}
Result<DmaBuf> MemoryKind::dma_buf(std::byte*, size_t) { return kind_lacks("has no dma-buf"); }

}  // namespace mc::xfer
