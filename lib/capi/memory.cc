// Memory of the transfer engine through the C interface: of the host, of devices, of files.
#include <algorithm>

#include "capi/common.h"

using namespace mc;

namespace {

// Fills *out with the memory that make(writable, location) returns.
template <class Make>
mc_code new_memory(mc_engine* engine, const char* location, unsigned flags, mc_memory** out,
                   const Make& make) {
  return capi::guarded(engine, [&]() -> Result<> {
    MC_TRY_(capi::need(out, "out"));
    auto m = std::make_unique<mc_memory>();
    const std::string at = location == nullptr ? "*" : location;
    MC_TRY_(engine->devices.know(*engine->engine, engine->clock, at));
    m->writable = (flags & MC_WRITABLE) != 0;
    MC_TRY(m->memory, make(m->writable, at));
    *out = m.release();
    return {};
  });
}

}  // namespace

extern "C" {

size_t mc_devices(mc_engine* engine, mc_device* out, size_t capacity) {
  size_t count = 0;
  (void)capi::guarded(engine, [&]() -> Result<> {
    if (capacity > 0) MC_TRY_(capi::need(out, "out"));
    if (capacity > 0 && out[0].size != sizeof(mc_device))
      return fail(Code::kInvalid, "mc_device.size is %u: want %zu", out[0].size, sizeof(mc_device));
    for (const device::Info& info : engine->devices.list(*engine->engine, engine->clock)) {
      if (count++ >= capacity) continue;
      mc_device& one = out[count - 1];
      one = {sizeof(mc_device), {}, {}, info.bytes};
      const std::string location = info.location();
      std::copy_n(location.data(), std::min(location.size(), sizeof one.location - 1),
                  one.location);
      std::copy_n(info.pci.data(), std::min(info.pci.size(), sizeof one.pci - 1), one.pci);
    }
    return {};
  });
  return count;
}

mc_code mc_memory_kind(mc_engine* engine, const void* address, char location[32]) {
  return capi::guarded(engine, [&]() -> Result<> {
    MC_TRY_(capi::need(address, "address"));
    MC_TRY_(capi::need(location, "location"));
    MC_TRY(const std::string found,
           engine->devices.location_of(*engine->engine, engine->clock, address));
    std::memset(location, 0, 32);
    std::copy_n(found.data(), std::min<size_t>(found.size(), 31), location);
    return {};
  });
}

mc_code mc_memory_register(mc_engine* engine, void* address, size_t bytes, const char* location,
                           unsigned flags, mc_memory** out) {
  return new_memory(engine, location, flags, out, [&](bool writable, const std::string& at) {
    return engine->engine->register_memory({static_cast<std::byte*>(address), bytes}, writable, at);
  });
}

mc_code mc_memory_allocate_at(mc_engine* engine, size_t bytes, const char* location, unsigned flags,
                              mc_memory** out) {
  return new_memory(engine, location, flags, out, [&](bool writable, const std::string& at) {
    return engine->engine->allocate(bytes, writable, at);
  });
}

mc_code mc_memory_allocate(mc_engine* engine, size_t bytes, unsigned flags, mc_memory** out) {
  return mc_memory_allocate_at(engine, bytes, nullptr, flags, out);
}

mc_code mc_memory_register_file(mc_engine* engine, const char* path, uint64_t bytes, unsigned flags,
                                mc_memory** out) {
  return new_memory(engine, nullptr, flags, out,
                    [&](bool writable, const std::string&) -> Result<xfer::Memory> {
                      MC_TRY_(capi::need(path, "path"));
                      return engine->engine->register_file(path, bytes, writable);
                    });
}

void* mc_memory_data(const mc_memory* memory) {
  return memory == nullptr ? nullptr : memory->memory.data();
}
size_t mc_memory_bytes(const mc_memory* memory) {
  return memory == nullptr ? 0 : memory->memory.size();
}
uint64_t mc_memory_offset(const mc_memory* memory) {
  return memory == nullptr ? 0 : memory->memory.offset();
}
void mc_memory_free(mc_memory* memory) { capi::destroy(memory); }

}  // extern "C"
