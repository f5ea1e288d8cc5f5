// Maps the memory of stand-in devices (stand_in.h). Each allocation has two addresses: the
// device's, which faults when the host touches it, and the one that copies use.
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

// All stand-in memory of this process, by address. A freed address stays reserved for a while, so
// that using it is an error and does not reach another allocation.
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
  std::deque<std::byte*> freed_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::device
