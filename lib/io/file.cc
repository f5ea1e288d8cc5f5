#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "base/text.h"
#include "io/fd.h"

namespace mc::io {

Result<std::string> read_file(const std::string& path, size_t bytes_max) {
  return read_whole(path, bytes_max);
}

Result<std::string> read_secret_file(const std::string& path, size_t bytes_max) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return fail_errno("open %s", path.c_str());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("read the mode of %s", path.c_str());
  if ((info.st_mode & 077) != 0)
    return fail(Code::kDenied, "%s may be read by others: chmod 600 it", path.c_str());
  return read_whole(fd.get(), path, bytes_max);
}

Result<> write_file_atomically(const std::string& path, std::string_view content, unsigned mode) {
  static std::atomic<unsigned> writes{0};  // threads that write one path need different temporaries
  const std::string temporary =
      path + "." + std::to_string(::getpid()) + "." + std::to_string(++writes) + ".tmp";
  ::unlink(temporary.c_str());  // one left by a dead process with our id would keep its mode
  Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return fail_errno("create %s", temporary.c_str());
  while (!content.empty()) {
    const ssize_t n = ::write(fd.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      auto failure = fail_errno("write %s", temporary.c_str());
      ::unlink(temporary.c_str());
      return failure;
    }
    content.remove_prefix(static_cast<size_t>(n));
  }
  fd.reset();
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    auto failure = fail_errno("rename %s to %s", temporary.c_str(), path.c_str());
    ::unlink(temporary.c_str());
    return failure;
  }
  return {};
}

}  // namespace mc::io
