#include "store/ssd/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "base/units.h"
#include "xfer/memory/file_queue.h"

namespace mc::store::ssd {
namespace {

constexpr Duration kStep = std::chrono::seconds(10);

class RealFile final : public Disk::File {
 public:
  explicit RealFile(xfer::FileStorePtr store) : store_(std::move(store)) {}
  uint64_t bytes() const override { return store_->bytes(); }
  Result<> sync() override { return store_->sync(); }
  const xfer::FileStorePtr& store() const { return store_; }

 private:
  const xfer::FileStorePtr store_;
};

// A thread's io_uring and its registered memory.
struct Ring {
  std::unique_ptr<xfer::FileQueue> queue;
  uint64_t region = 0;
  bool uring = false, fixed = false;
};

class RealDisk final : public Disk {
 public:
  RealDisk(std::string folder, const DiskOptions& options, io::Fd lock)
      : folder_(std::move(folder)), options_(options), lock_(std::move(lock)) {}

  Result<FilePtr> open(const std::string& path) override;
  Result<FilePtr> create(const std::string& path, uint64_t bytes) override;
  void read(std::span<const Part> parts, const Ended& ended) override;
  Result<> write(std::span<const Part> parts) override;
  Result<> rename(const std::string& from, const std::string& to) override;
  Result<> remove(const std::string& path) override;
  Result<> make_folder(const std::string& path) override;
  Result<> sync_folder(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  void use(std::span<std::byte> memory);

 private:
  std::string full(const std::string& path) const { return folder_ + "/" + path; }
  xfer::FileQueue& queue();
  void move(xfer::Op op, std::span<const Part> parts, const Ended& ended);

  const std::string folder_;
  const DiskOptions options_;
  const io::Fd lock_;
  std::span<std::byte> memory_;
  uint64_t region_ = 0;  // id of memory_, unique in the process; 0: none
};

thread_local Ring ring;

Result<Disk::FilePtr> RealDisk::open(const std::string& path) {
  // Falls back to read-only, because a read-only disk is still served.
  auto store = xfer::FileStore::offer(full(path), 0, true, nullptr);
  if (!store && store.error().code == Code::kDenied)
    store = xfer::FileStore::offer(full(path), 0, false, nullptr);
  if (!store && store.error().code == Code::kInvalid)  // empty or absent
    return fail(Code::kCorrupt, "%s", store.error().what.c_str());
  if (!store) return fail(store.error());
  return std::make_shared<RealFile>(std::move(*store));
}

Result<Disk::FilePtr> RealDisk::create(const std::string& path, uint64_t bytes) {
  if (::access(full(path).c_str(), F_OK) == 0)
    return fail(Code::kExists, "%s is there already", full(path).c_str());
  MC_TRY(auto store, xfer::FileStore::offer(full(path), bytes, true, nullptr));
  return std::make_shared<RealFile>(std::move(store));
}

xfer::FileQueue& RealDisk::queue() {
  if (ring.queue == nullptr || ring.uring != options_.uring ||
      (region_ != 0 && ring.region != region_)) {
    ring.queue =
        std::make_unique<xfer::FileQueue>(xfer::FileQueue::Config{kDepth, options_.uring, true});
    ring.uring = options_.uring;
    ring.region = region_;
    const iovec whole{memory_.data(), memory_.size()};
    ring.fixed = region_ != 0 && ring.queue->register_memory({&whole, 1});
  }
  return *ring.queue;
}

void RealDisk::move(xfer::Op op, std::span<const Part> parts, const Ended& ended) {
  xfer::FileQueue& q = queue();
  std::vector<uint64_t> open(parts.size(), 1);  // pending steps, plus one until all are started
  std::vector<Result<>> outcomes(parts.size());
  std::vector<xfer::FileQueue::Done> done;
  const auto step_ended = [&](size_t i) {
    if (--open[i] == 0) ended(i, outcomes[i]);
  };
  const auto collect = [&](Duration wait) {
    done.clear();
    q.collect(done, wait);
    for (auto& d : done) {
      if (!d.outcome && outcomes[d.tag]) outcomes[d.tag] = std::move(d.outcome);
      step_ended(d.tag);
    }
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& p = parts[i];
    const bool fixed = ring.fixed && ring.region == region_ && p.data >= memory_.data() &&
                       p.data + p.bytes <= memory_.data() + memory_.size();
    for (uint64_t at = 0; at < p.bytes && outcomes[i];) {
      while (q.full()) collect(kStep);
      ++open[i];
      at += q.start({static_cast<const RealFile&>(*p.file).store(), op, p.at + at, p.data + at,
                     p.bytes - at, i, fixed ? 0 : -1});
    }
    step_ended(i);
  }
  while (q.under_way() > 0) collect(kStep);
  collect({});  // without io_uring everything is already done
}

void RealDisk::read(std::span<const Part> parts, const Ended& ended) {
  move(xfer::Op::kRead, parts, ended);
}

Result<> RealDisk::write(std::span<const Part> parts) {
  Result<> first;
  move(xfer::Op::kWrite, parts, [&](size_t, const Result<>& outcome) {
    if (!outcome && first) first = outcome;
  });
  return first;
}

Result<> RealDisk::rename(const std::string& from, const std::string& to) {
  if (std::rename(full(from).c_str(), full(to).c_str()) != 0)
    return fail_errno("rename %s to %s", full(from).c_str(), to.c_str());
  return {};
}

Result<> RealDisk::remove(const std::string& path) {
  if (::unlink(full(path).c_str()) != 0 && errno != ENOENT)
    return fail_errno("remove %s", full(path).c_str());
  return {};
}

Result<> RealDisk::make_folder(const std::string& path) {
  if (::mkdir(full(path).c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno("make folder %s", full(path).c_str());
  return {};
}

Result<> RealDisk::sync_folder(const std::string& path) {
  const io::Fd fd(::open(full(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return fail_errno("sync folder %s", full(path).c_str());
  return {};
}

Result<std::vector<std::string>> RealDisk::list(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(full(path).c_str()), ::closedir);
  if (folder == nullptr) return fail_errno("list %s", full(path).c_str());
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* e = ::readdir(folder.get())) {
    std::string name = e->d_name;
    if (name == "." || name == "..") continue;
    if (e->d_type == DT_DIR) name += '/';
    names.push_back(std::move(name));
    errno = 0;
  }
  if (errno != 0)
    return fail_errno("list %s", full(path).c_str());  // a part would look like losses
  std::sort(names.begin(), names.end());
  return names;
}

void RealDisk::use(std::span<std::byte> memory) {
  static std::atomic<uint64_t> regions{0};
  // Pinning may fail with huge pages.
  (void)::madvise(memory.data(), memory.size(), MADV_NOHUGEPAGE);
  memory_ = memory;
  region_ = ++regions;
}

Result<io::Fd> take_lock(const std::string& folder) {
  const std::string path = folder + "/LOCK";
  io::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd && errno == EROFS) fd.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fail_errno("open %s", path.c_str());
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(Code::kBusy, "%s is in use by another process", folder.c_str());
  return fd;
}

}  // namespace

Result<std::shared_ptr<Disk>> open_disk(const std::string& folder, const DiskOptions& options) {
  if (folder.empty()) return fail(Code::kInvalid, "the folder of the SSD tier has no name");
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST && errno != EROFS)
    return fail_errno("make folder %s", folder.c_str());
  io::Fd lock;
  if (options.lock) {
    MC_TRY(lock, take_lock(folder));
  }
  return std::make_shared<RealDisk>(folder, options, std::move(lock));
}

void use_memory(Disk& disk, std::span<std::byte> memory) {
  if (auto* real = dynamic_cast<RealDisk*>(&disk)) real->use(memory);
}

Result<std::string> read_all(Disk& disk, const std::string& path, uint64_t bytes_max) {
  MC_TRY(const Disk::FilePtr file, disk.open(path));
  if (file->bytes() > bytes_max)
    return fail(Code::kCorrupt, "%s has %s: %s at most", path.c_str(),
                rounded_bytes_text(file->bytes()).c_str(), rounded_bytes_text(bytes_max).c_str());
  std::string out(file->bytes(), '\0');
  const Disk::Part part{file, 0, reinterpret_cast<std::byte*>(out.data()), out.size()};
  Result<> outcome;
  disk.read({&part, 1}, [&](size_t, const Result<>& r) { outcome = r; });
  if (!outcome) return fail(outcome.error());
  return out;
}

Result<> write_all(Disk& disk, const std::string& folder, const std::string& name,
                   std::string_view content) {
  const std::string path = folder + name, temporary = path + kTemporary;
  MC_TRY_(disk.remove(temporary));  // left by a crash
  MC_TRY(const Disk::FilePtr file, disk.create(temporary, content.size()));
  // A write only reads memory, but one Part type serves both directions.
  auto* data = reinterpret_cast<std::byte*>(const_cast<char*>(content.data()));
  const Disk::Part part{file, 0, data, content.size()};
  auto written = disk.write({&part, 1});
  if (written) written = file->sync();
  if (written) written = disk.rename(temporary, path);
  if (!written) {
    (void)disk.remove(temporary);
    return written;
  }
  return disk.sync_folder(folder.empty() ? "." : folder);
}

}  // namespace mc::store::ssd
