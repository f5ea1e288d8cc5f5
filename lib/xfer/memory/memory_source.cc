#include "xfer/memory/memory_source.h"

#include <sys/vfs.h>

#include "xfer/memory/registry.h"

namespace mc::xfer {

uint64_t map_unit(int fd) {
  constexpr auto kHugetlbfs = 0x958458f6;  // HUGETLBFS_MAGIC of linux/magic.h
  struct statfs fs {};
  if (::fstatfs(fd, &fs) != 0 || static_cast<uint32_t>(fs.f_type) != kHugetlbfs) return kPage;
  return static_cast<uint64_t>(fs.f_bsize);
}

}  // namespace mc::xfer
