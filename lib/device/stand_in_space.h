// The memory of stand-in devices (stand_in.h): where each allocation lies for the host, which must
// not touch it there, and where copies see it.
//
// Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/result.h"
#include "io/fd.h"

namespace mc::device {

// Bytes in whole pages.
uint64_t pages(uint64_t bytes);
// Null when it cannot be mapped. `fd` below 0: no file.
std::byte* map_memory(uint64_t bytes, int access, int fd);

// An allocation, of this process or another's: `address` faults, `seen` does not.
struct Area {
  int ordinal = 0;
  std::byte *address = nullptr, *seen = nullptr;
  uint64_t bytes = 0, mapped = 0;
  io::Fd fd;
  bool own = true;
  ~Area();
};
using AreaPtr = std::shared_ptr<Area>;

// All stand-in memory of this process, by address; where memory was freed, the address stays
// reserved for a while, so that its use is an error and not another's bytes.
class AddressSpace {
 public:
  static AddressSpace& get() {
    static AddressSpace space;
    return space;
  }
  // Errors: those of mmap.
  Result<AreaPtr> add(int ordinal, io::Fd fd, uint64_t bytes, bool own);
  void free(const AreaPtr& area);
  // Null: memory of the host. kInvalid: it was freed, or the range passes its end.
  Result<AreaPtr> find(const std::byte* address, uint64_t bytes);

 private:
  struct Spot {
    AreaPtr area;  // null: freed
    uint64_t mapped = 0;
  };
  Mutex mutex_;
  std::map<std::byte*, Spot> areas_ MC_GUARDED_BY(mutex_);
  std::deque<std::byte*> graves_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::device
