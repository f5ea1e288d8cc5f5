#include "io/limits.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "io/fd.h"

namespace mc::io {

uint64_t raise_open_files(uint64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

Result<> spare_files(int wanted) {
  std::vector<Fd> opened;
  for (int i = 0; i < wanted; ++i) {
    opened.emplace_back(::eventfd(0, EFD_CLOEXEC));
    if (!opened.back())
      return fail(Code::kNoSpace, "open files: %s, %d more are wanted: raise the limit (ulimit -n)",
                  std::strerror(errno), wanted - i);
  }
  return {};
}

}  // namespace mc::io
