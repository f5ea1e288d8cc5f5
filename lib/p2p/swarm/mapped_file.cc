#include "p2p/swarm/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/hash.h"
#include "p2p/shards.h"

namespace mc::p2p {

MappedFile::~MappedFile() {
  memory_ = {};  // withdrawn before it is unmapped
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<> MappedFile::map(xfer::Engine& engine, int protection) {
  if (bytes_ == 0) return {};
  void* p = ::mmap(nullptr, bytes_, protection, MAP_SHARED, fd_.get(), 0);
  if (p == MAP_FAILED) return fail_errno("map %s", path_.c_str());
  data_ = static_cast<std::byte*>(p);
  MC_TRY(memory_, engine.register_memory({data_, bytes_}, false));
  return {};
}

Result<std::unique_ptr<MappedFile>> MappedFile::open(xfer::Engine& engine,
                                                     const std::string& path) {
  std::unique_ptr<MappedFile> f(new MappedFile);
  f->path_ = path;
  f->fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!f->fd_ || ::fstat(f->fd_.get(), &info) != 0) return fail_errno("open %s", path.c_str());
  if (!S_ISREG(info.st_mode)) return fail(Code::kInvalid, "%s is no regular file", path.c_str());
  f->bytes_ = static_cast<uint64_t>(info.st_size);
  MC_TRY_(f->map(engine, PROT_READ));
  return f;
}

Result<std::unique_ptr<MappedFile>> MappedFile::create(xfer::Engine& engine,
                                                       const std::string& path, uint64_t bytes,
                                                       bool* existed) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error)
    return fail(Code::kInvalid, "create the folder of %s: %s", path.c_str(),
                error.message().c_str());
  std::unique_ptr<MappedFile> f(new MappedFile);
  f->path_ = path;
  f->bytes_ = bytes;
  struct stat info {};
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  f->fd_.reset(::open(path.c_str(), kFlags));
  if (!f->fd_ && errno != ENOENT) return fail_errno("open %s", path.c_str());
  if (f->fd_ && ::fstat(f->fd_.get(), &info) != 0) return fail_errno("open %s", path.c_str());
  if (f->fd_ && !S_ISREG(info.st_mode))
    return fail(Code::kInvalid, "%s is no regular file", path.c_str());
  if (!f->fd_ || static_cast<uint64_t>(info.st_size) != bytes) {
    f->whole_ = false;
    const std::string part = part_path(path);
    f->fd_.reset(::open(part.c_str(), kFlags | O_CREAT, 0644));
    if (!f->fd_ || ::fstat(f->fd_.get(), &info) != 0) return fail_errno("create %s", part.c_str());
    if (!S_ISREG(info.st_mode)) return fail(Code::kInvalid, "%s is no regular file", part.c_str());
  }
  *existed = static_cast<uint64_t>(info.st_size) == bytes;
  if (!*existed && ::ftruncate(f->fd_.get(), static_cast<off_t>(bytes)) != 0)
    return fail_errno("resize %s", path.c_str());
  // All of it now: a full disk is an error here, and not a signal on a mapped page.
  if (bytes > 0)
    if (const int e = ::posix_fallocate(f->fd_.get(), 0, static_cast<off_t>(bytes)); e != 0) {
      // It has taken what there was, which others on this disk need.
      if (!*existed) (void)::ftruncate(f->fd_.get(), info.st_size);
      errno = e;
      return fail_errno("allocate %s for %s", rounded_bytes_text(bytes).c_str(), path.c_str());
    }
  MC_TRY_(f->map(engine, PROT_READ | PROT_WRITE));
  return f;
}

Result<> MappedFile::rename_to(bool whole) {
  if (whole == whole_) return {};
  const std::string part = part_path(path_), &from = whole ? part : path_,
                    &to = whole ? path_ : part;
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    struct stat mine {
    }, there{};  // another pull into this folder may have done it
    if (error != ENOENT || ::fstat(fd_.get(), &mine) != 0 || ::lstat(to.c_str(), &there) != 0 ||
        mine.st_ino != there.st_ino || mine.st_dev != there.st_dev) {
      errno = error;
      return fail_errno("rename %s to %s", from.c_str(), to.c_str());
    }
  }
  whole_ = whole;
  return {};
}

Result<uint64_t> MappedFile::checksum(uint64_t offset, uint64_t bytes) const {
  std::vector<std::byte> buffer(std::min<uint64_t>(bytes, 1 * kMiB));
  Xxh3Stream sum;
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_.get(), buffer.data(), std::min<uint64_t>(bytes, buffer.size()),
                              static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("read %s", path_.c_str());
    if (n == 0) return fail(Code::kCorrupt, "%s was cut short", path_.c_str());
    sum.update(buffer.data(), static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return sum.digest();
}

}  // namespace mc::p2p
