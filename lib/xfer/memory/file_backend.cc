#include "xfer/memory/file_backend.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/units.h"
#include "xfer/memory/file_stream.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{1} << 46;

// What direct operations must be aligned to, where the kernel tells (6.1).
struct Alignment {
  uint64_t memory = 512, offset = FileStore::kPageBytes;
};
Alignment alignment_of(int fd) {
  Alignment a;
#ifdef STATX_DIOALIGN
  struct statx s {};
  if (::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) == 0 &&
      (s.stx_mask & STATX_DIOALIGN) != 0 && s.stx_dio_mem_align > 0) {
    a.memory = s.stx_dio_mem_align;
    a.offset = std::max<uint64_t>(a.offset, s.stx_dio_offset_align);
  }
#endif
  return a;
}

std::string real_path(const std::string& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

}  // namespace

Result<FileStorePtr> FileStore::open(const std::string& path, int flags, uint64_t bytes,
                                     std::shared_ptr<FileStreamPool> file_streams) {
  if (bytes == 0 || bytes > kFileBytesMax)
    return fail(Code::kInvalid, "offer %llu bytes of %s", static_cast<unsigned long long>(bytes),
                path.c_str());
  FileStorePtr file(new FileStore);
  // Non-blocking: a FIFO would block here. It has no effect on files.
  file->cached_.reset(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!file->cached_) return fail_errno("open %s", path.c_str());
  struct stat s {};
  if (::fstat(file->cached_.get(), &s) != 0) return fail_errno("stat %s", path.c_str());
  if (!S_ISREG(s.st_mode) && !S_ISBLK(s.st_mode))
    return fail(Code::kInvalid, "%s is neither a file nor a block device", path.c_str());
  file->path_ = real_path(path);
  file->bytes_ = bytes;
  file->dev_ = s.st_dev;
  file->ino_ = s.st_ino;
  // The file that was opened, even if its name belongs to another one by now.
  const std::string same = "/proc/self/fd/" + std::to_string(file->cached_.get());
  file->direct_.reset(::open(same.c_str(), (flags & O_ACCMODE) | O_DIRECT | O_CLOEXEC));
  const Alignment a = alignment_of(file->cached_.get());
  file->memory_align_ = a.memory;
  file->page_ = a.offset;
  file->streams_ = std::move(file_streams);
  return file;
}

Result<FileStorePtr> FileStore::offer(const std::string& path, uint64_t bytes, bool writable,
                                      std::shared_ptr<FileStreamPool> file_streams) {
  const bool there = ::access(path.c_str(), F_OK) == 0, whole = bytes == 0;
  const int flags = (writable ? O_RDWR : O_RDONLY) | (writable && !whole ? O_CREAT : 0);
  MC_TRY(FileStorePtr file, open(path, flags, whole ? 1 : bytes, std::move(file_streams)));
  MC_TRY(const uint64_t has, file->size());
  if (whole) {
    if (has == 0 || has > kFileBytesMax)
      return fail(Code::kInvalid, "%s has %llu bytes: say how many to offer", path.c_str(),
                  static_cast<unsigned long long>(has));
    file->bytes_ = has;
  }
  if (has >= bytes) return file;
  if (!writable)
    return fail(Code::kInvalid, "%s has %s, %s were to be offered", path.c_str(),
                rounded_bytes_text(has).c_str(), rounded_bytes_text(bytes).c_str());
  if (const auto longer = file->lengthen(has); !longer) {
    if (!there) ::unlink(path.c_str());
    return fail(longer.error());
  }
  return file;
}

Result<FileStorePtr> FileStore::attach(const std::string& path, uint64_t bytes, bool writable,
                                       uint64_t dev, uint64_t ino) {
  MC_TRY(FileStorePtr file, open(path, writable ? O_RDWR : O_RDONLY, bytes, nullptr));
  if (file->dev_ != dev || file->ino_ != ino)
    return fail(Code::kUnavailable, "%s is another file here", path.c_str());
  MC_TRY(const uint64_t has, file->size());
  if (has < bytes)
    return fail(Code::kCorrupt, "%s has %s, %s are offered", path.c_str(),
                rounded_bytes_text(has).c_str(), rounded_bytes_text(bytes).c_str());
  return file;
}

Result<uint64_t> FileStore::size() const {
  const off_t end = ::lseek(cached_.get(), 0, SEEK_END);  // of a block device too
  if (end < 0) return fail_errno("size of %s", path_.c_str());
  return static_cast<uint64_t>(end);
}

// Allocates the space too, so that a full disk fails here and not during a transfer.
Result<> FileStore::lengthen(uint64_t from) {
  const auto end = static_cast<off_t>(bytes_);
  if (::fallocate(cached_.get(), 0, static_cast<off_t>(from), end - static_cast<off_t>(from)) == 0)
    return {};
  if (errno == EOPNOTSUPP && ::ftruncate(cached_.get(), end) == 0) return {};
  const auto failure =
      fail_errno("lengthen %s to %s", path_.c_str(), rounded_bytes_text(bytes_).c_str());
  if (::ftruncate(cached_.get(), static_cast<off_t>(from)) != 0) return failure;
  return failure;
}

FileStore::Step FileStore::step(uint64_t at, const std::byte* p, uint64_t n) const {
  const auto most = [](uint64_t m) {
    return static_cast<uint32_t>(std::min<uint64_t>(m, kStepMax));
  };
  const uint64_t head = (page_ - at % page_) % page_;
  const bool direct = direct_ && !no_direct_.load(std::memory_order_relaxed) && head < n &&
                      n - head >= page_ &&
                      (reinterpret_cast<uintptr_t>(p) + head) % memory_align_ == 0;
  if (!direct) return {cached_.get(), most(n), false};
  if (head > 0) return {cached_.get(), most(head), false};
  return {direct_.get(), most(n / page_ * page_), true};
}

Result<uint64_t> FileStore::judge(Op op, uint64_t at, const Step& step, int64_t result) const {
  const char* verb = op == Op::kRead ? "read" : "write";
  const auto place = static_cast<unsigned long long>(at);
  if (result > 0) return static_cast<uint64_t>(result);
  if (result == -EINTR || result == -EAGAIN) return uint64_t{0};
  if (result == -EINVAL && step.direct) {  // promised, yet refused: through the cache from now on
    no_direct_.store(true, std::memory_order_relaxed);
    return uint64_t{0};
  }
  if (result == 0 && op == Op::kRead)
    return fail(Code::kCorrupt, "read %s at %llu: the file ends there, yet %s of it are offered",
                path_.c_str(), place, rounded_bytes_text(bytes_).c_str());
  errno = result == 0 ? EIO : static_cast<int>(-result);
  // The file's fault, not the request's: another replica may work.
  if (errno == EIO)
    return fail(Code::kUnavailable, "%s %s at %llu: %s", verb, path_.c_str(), place,
                std::strerror(errno));
  return fail_errno("%s %s at %llu", verb, path_.c_str(), place);
}

Result<> FileStore::pass(Op op, uint64_t at, std::byte* p, uint64_t n) const {
  while (n > 0) {
    const Step s = step(at, p, n);
    const ssize_t r = op == Op::kRead ? ::pread(s.fd, p, s.bytes, static_cast<off_t>(at))
                                      : ::pwrite(s.fd, p, s.bytes, static_cast<off_t>(at));
    MC_TRY(const uint64_t moved, judge(op, at, s, r < 0 ? -errno : r));
    at += moved;
    p += moved;
    n -= moved;
  }
  return {};
}

Result<> FileStore::read(uint64_t at, std::span<std::byte> to) {
  return pass(Op::kRead, at, to.data(), to.size());
}
Result<> FileStore::write(uint64_t at, std::span<const std::byte> from) {
  return pass(Op::kWrite, at, const_cast<std::byte*>(from.data()), from.size());
}

Result<> FileStore::sync() {
  if (::fdatasync(cached_.get()) != 0) return fail_errno("sync %s", path_.c_str());
  return {};
}
std::unique_ptr<StagingStream> FileStore::staging_stream() {
  return streams_ == nullptr ? BufferBackend::staging_stream() : streams_->take(shared_from_this());
}

}  // namespace mc::xfer
