#include "store/node/part_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mc::store {

Result<PartReader> PartReader::of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return fail(Code::kUnavailable, "size: %s", std::strerror(errno));
  return PartReader(fd, static_cast<uint64_t>(info.st_size));
}

Result<std::string_view> PartReader::read(uint64_t at, size_t want) {
  const auto n = static_cast<size_t>(std::min<uint64_t>(want, bytes_ - std::min(at, bytes_)));
  if (at < first_ || at + n > first_ + part_.size()) {
    MC_TRY_(fill(at));
  }
  return std::string_view(part_).substr(at - first_, n);
}

Result<bool> PartReader::has(std::string_view mark, uint64_t at) {
  for (; at + mark.size() <= bytes_; at += kPartBytes - mark.size() + 1) {
    MC_TRY(const std::string_view part, read(at, kPartBytes));
    if (part.find(mark) != std::string_view::npos) return true;
  }
  return false;
}

Result<> PartReader::fill(uint64_t at) {
  first_ = at;
  part_.resize(static_cast<size_t>(std::min<uint64_t>(kPartBytes, bytes_ - std::min(at, bytes_))));
  for (size_t done = 0; done < part_.size();) {
    const ssize_t n =
        ::pread(fd_, part_.data() + done, part_.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Code::kUnavailable, "%s", std::strerror(errno));
    if (n == 0) return fail(Code::kUnavailable, "it became shorter");
    done += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace mc::store
