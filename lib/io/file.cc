#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/text.h"

namespace mc::io {

Result<std::string> read_file(const std::string& path, size_t bytes_max) {
  return read_whole(path, bytes_max);
}

namespace {

Result<> check_owner_only(const struct stat& info, const std::string& path) {
  if ((info.st_mode & 077) == 0) return {};
  return fail(Code::kDenied, "%s may be read by others: chmod 600 it", path.c_str());
}

}  // namespace

Result<std::string> read_secret_file(const std::string& path, size_t bytes_max) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return fail_errno("open %s", path.c_str());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("read the mode of %s", path.c_str());
  MC_TRY_(check_owner_only(info, path));
  return read_whole(fd.get(), path, bytes_max);
}

Result<> check_secret_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail_errno("read the mode of %s", path.c_str());
  return check_owner_only(info, path);
}

namespace {

Result<> write_all(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("write %s", path.c_str());
    content.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

// The file that a chain of links leads to, also where it is not there yet.
std::string linked_file(std::string path) {
  constexpr int kLinksMax = 40;  // as the kernel has it
  std::error_code error;
  for (int i = 0; i < kLinksMax; ++i) {
    const auto target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  return path;
}

// The standard stream of this process that writes to that file; -1: none does.
int stream_to(const struct stat& file) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat info {};
    if (::fstat(fd, &info) == 0 && info.st_dev == file.st_dev && info.st_ino == file.st_ino)
      return fd;
  }
  return -1;
}

}  // namespace

Result<OutputFile> OutputFile::beside(const std::string& path, unsigned mode) {
  static std::atomic<unsigned> writes{0};  // threads that write one path need different temporaries
  const std::string temporary =
      path + "." + std::to_string(::getpid()) + "." + std::to_string(++writes) + ".tmp";
  ::unlink(temporary.c_str());  // one left by a dead process with our id would keep its mode
  Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return fail_errno("create %s", temporary.c_str());
  return OutputFile(std::move(fd), temporary, path);
}

Result<OutputFile> OutputFile::open(const std::string& path) {
  struct stat info {};
  const bool there = ::stat(path.c_str(), &info) == 0;
  if (there && S_ISDIR(info.st_mode))
    return fail(Code::kInvalid, "'%s' is a folder: name a file", path.c_str());
  if (!there) return beside(linked_file(path), 0644);
  if (S_ISREG(info.st_mode)) {
    if (const int stream = stream_to(info); stream >= 0) {  // another file would have its name
      std::fflush(stdout);
      Fd same(::fcntl(stream, F_DUPFD_CLOEXEC, 0));
      if (!same) return fail_errno("open %s", path.c_str());
      return OutputFile(std::move(same), path, "");
    }
    MC_TRY(OutputFile file, beside(linked_file(path), info.st_mode & 0777));
    (void)::fchmod(file.fd_.get(), info.st_mode & 0777);  // whatever the umask
    return file;
  }
  Fd other(::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  if (!other && errno == ENXIO)
    return fail(Code::kUnavailable, "open %s: nobody reads this pipe", path.c_str());
  if (!other) return fail_errno("open %s", path.c_str());
  const int flags = ::fcntl(other.get(), F_GETFL);
  if (flags < 0 || ::fcntl(other.get(), F_SETFL, flags & ~O_NONBLOCK) < 0)
    return fail_errno("open %s", path.c_str());
  return OutputFile(std::move(other), path, "");
}

OutputFile::~OutputFile() {
  if (fd_ && !path_.empty()) ::unlink(written_.c_str());
}

Result<> OutputFile::write(std::string_view bytes) { return write_all(fd_.get(), written_, bytes); }

Result<> OutputFile::finish() {
  if (!path_.empty() && std::rename(written_.c_str(), path_.c_str()) != 0)
    return fail_errno("rename %s to %s", written_.c_str(), path_.c_str());
  fd_.reset();
  return {};
}

Result<> write_file_atomically(const std::string& path, std::string_view content, unsigned mode) {
  MC_TRY(OutputFile file, OutputFile::beside(path, mode));
  MC_TRY_(file.write(content));
  return file.finish();
}

Result<> write_output(const std::string& path, std::string_view content) {
  MC_TRY(OutputFile file, OutputFile::open(path));
  MC_TRY_(file.write(content));
  return file.finish();
}

}  // namespace mc::io
