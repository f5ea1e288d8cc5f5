// Where a registered buffer's bytes are when host code cannot touch them itself: memory of a
// device, or a file. Whoever serves such a buffer moves its bytes through a piece of host memory.
//
// Thread: any; calls on different ranges may run at the same time. They block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace mc::xfer {

class Backing {
 public:
  virtual ~Backing() = default;
  // `at` counts from the start of the buffer; the range lies inside it.
  virtual Result<> read(uint64_t at, std::span<std::byte> to) = 0;
  virtual Result<> write(uint64_t at, std::span<const std::byte> from) = 0;
};

}  // namespace mc::xfer
