// Encodes a range of device memory for another process of this host. Private to the devices.
//
// Thread: any.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mc::device {

struct Handle {
  char kind[8] = {};        // "cuda", "stand-in", padded with zeros
  uint64_t started = 0;     // of the process, so that its number is not taken for another's
  uint64_t offset = 0;      // of the memory in what `raw` names
  uint64_t bytes = 0;       // of the memory
  int32_t pid = 0;          // as this host's processes see it
  int32_t ordinal = 0;      // of the device, to its owner
  unsigned char raw[64]{};  // the driver's own
};
static_assert(sizeof(Handle) == 104);

// Filled in but for offset, bytes and raw.
Result<Handle> own_handle(std::string_view kind, int ordinal);
std::string encode(const Handle& handle);
// Checks length and kind, and that the process lives and is not this one.
Result<Handle> decode(std::string_view bytes, std::string_view kind);

}  // namespace mc::device
