#include "xfer/memory/registry.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/hash.h"
#include "io/file.h"
#include "xfer/core/host.h"
#include "xfer/memory/file_backend.h"

namespace mc::xfer {
namespace {

constexpr uint64_t kFillStep = 256 * kMiB;
constexpr uint64_t kReserve = 64 * kMiB;  // left to others
constexpr uint64_t kSmall = 1 * kMiB;     // not worth the look
constexpr uint64_t kHugePage = 2 * kMiB;

// Peers that copy without a request read this word.
void mark(Buffer& buffer, uint64_t value) {
  buffer.witness.alive.store(value, std::memory_order_release);
  if (buffer.shm_id == 0) return;
  auto* word = reinterpret_cast<uint64_t*>(buffer.data + page_up(buffer.bytes));
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
}

// Allocates all of it now: a machine without memory fails here, not by a signal at the first touch.
// The kernel would not fail, but kill a process of its choice; so each step checks first.
Result<> look(uint64_t bytes, uint64_t left) {
  const uint64_t free = free_memory();
  if (left <= kSmall || (free >= kReserve && left <= free - kReserve)) return {};
  return fail(Code::kNoSpace, "%s of memory: only %s is free", rounded_bytes_text(bytes).c_str(),
              rounded_bytes_text(free).c_str());
}

Result<> fill(int memfd, uint64_t bytes, bool ordinary = true) {
  for (uint64_t done = 0; done < bytes; done += kFillStep) {
    const uint64_t left = bytes - done;
    if (ordinary) MC_TRY_(look(bytes, left));
    if (::fallocate(memfd, 0, static_cast<off_t>(done),
                    static_cast<off_t>(std::min(left, kFillStep))) != 0)
      return fail(Code::kNoSpace, "%s of shared memory: %s", rounded_bytes_text(bytes).c_str(),
                  std::strerror(errno));
  }
  return {};
}

std::string huge_pages_wanted(uint64_t bytes, uint64_t unit) {
  const std::string folder =
      "/sys/kernel/mm/hugepages/hugepages-" + std::to_string(unit / kKiB) + "kB/";
  const auto number = [&](const char* name) {
    const auto text = io::read_file(folder + name);
    return text ? std::strtoull(text->c_str(), nullptr, 10) : 0ULL;
  };
  const uint64_t want = bytes / unit, free = number("free_hugepages"),
                 total = number("nr_hugepages");
  return strf(
      "%s in huge pages of %s: %llu are needed, %llu are free: 'sysctl vm.nr_hugepages=%llu'",
      rounded_bytes_text(bytes).c_str(), rounded_bytes_text(unit).c_str(),
      static_cast<unsigned long long>(want), static_cast<unsigned long long>(free),
      static_cast<unsigned long long>(total + want - std::min(want, free)));
}

// Binds the mapping's pages, which are not allocated yet, to one NUMA node.
Result<> bind_to(void* p, uint64_t bytes, int numa) {
  constexpr int kBind = 2;  // MPOL_BIND of linux/mempolicy.h
  constexpr int kNodesMax = 1024, kBits = 64;
  uint64_t mask[kNodesMax / kBits] = {};
  if (numa >= kNodesMax) return fail(Code::kInvalid, "NUMA node %d: there is none", numa);
  mask[numa / kBits] = uint64_t{1} << (numa % kBits);
  if (::syscall(SYS_mbind, p, bytes, kBind, mask, kNodesMax + 1, 0) == 0) return {};
  return fail(Code::kInvalid, "memory of NUMA node %d: %s: 'mc-topo show' tells which there are",
              numa, std::strerror(errno));
}

Result<> fill(std::byte* data, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes; done += kFillStep) {
    const uint64_t left = bytes - done, step = std::min(left, kFillStep);
    MC_TRY_(look(bytes, left));
    if (::madvise(data + done, step, MADV_POPULATE_WRITE) == 0) continue;
    if (errno != EINVAL)
      return fail(Code::kNoSpace, "%s of memory: %s", rounded_bytes_text(bytes).c_str(),
                  std::strerror(errno));
    for (uint64_t at = 0; at < step; at += kPage) data[done + at] = std::byte{0};  // before 5.14
  }
  return {};
}

}  // namespace

Buffer::~Buffer() {
  pinned.clear();
  if (mapped > 0) ::munmap(data, mapped);
}

void Registry::observe(std::shared_ptr<RegistrationObserver> observer) {
  observer_ = std::move(observer);
}

Result<BufferPtr> Registry::insert(BufferPtr buffer) {
  if (observer_ != nullptr) observer_->offer(*buffer);
  Result<> inserted;
  {
    Lock lock(mutex_);
    inserted = insert_locked(buffer);
  }
  if (inserted) return buffer;
  if (observer_ != nullptr) observer_->withdraw(*buffer);
  return fail(inserted.error());
}

Result<> Registry::insert_locked(const BufferPtr& buffer) {
  if (buffers_.size() >= kBuffersMax)
    return fail(Code::kNoSpace, "%zu buffers are registered already", buffers_.size());
  buffer->offset = next_offset_;
  next_offset_ += page_up(buffer->bytes) + kPage;
  buffers_.emplace(buffer->offset, buffer);
  ++version_;
  if (buffer->backend != nullptr && buffer->data != nullptr) {
    devices_.emplace(buffer->data, buffer);
    devices_known_.store(devices_.size(), std::memory_order_release);
  }
  if (buffer->shm_id != 0) {
    buffer->slots = write_slots_of(buffer->data, page_up(buffer->bytes));
    free_ended(buffer->slots);  // a named file may have those of an earlier process
  } else if (buffer->backend == nullptr) {
    buffer->own_slots = std::make_unique<WriteSlot[]>(kWriteSlots);
    buffer->slots = buffer->own_slots.get();
  }
  // A value that freed and reused memory is unlikely to hold.
  const uint64_t once[2] = {generation_.n, buffer->offset};
  mark(*buffer, buffer->shm_id != 0 ? 1 : xxh3(once, sizeof once) | 1);
  return {};
}

Result<BufferPtr> Registry::allocate(uint64_t bytes, bool writable, std::string location) {
  if (bytes == 0 || bytes > (uint64_t{1} << 46))
    return fail(Code::kInvalid, "allocate %llu bytes", static_cast<unsigned long long>(bytes));
  if (unshared_.load()) return allocate_anonymous(bytes, writable, std::move(location));
  auto buffer = std::make_shared<Buffer>();
  const auto mapped = static_cast<off_t>(page_up(bytes) + kPage);
  buffer->memfd.reset(::memfd_create("mc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!buffer->memfd) return fail_errno("memfd of %s", rounded_bytes_text(bytes).c_str());
  MC_TRY_(fill(buffer->memfd.get(), static_cast<uint64_t>(mapped)));
  void* p = ::mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE, MAP_SHARED,
                   buffer->memfd.get(), 0);
  if (p == MAP_FAILED) return fail_errno("map %s", rounded_bytes_text(bytes).c_str());
  buffer->data = static_cast<std::byte*>(p);
  buffer->bytes = bytes;
  buffer->mapped = static_cast<uint64_t>(mapped);
  buffer->writable = writable;
  buffer->location = std::move(location);
  return seal(std::move(buffer));
}

Result<BufferPtr> Registry::allocate_from(MemorySource source, uint64_t bytes, bool writable) {
  if (bytes == 0 || bytes > (uint64_t{1} << 46))
    return fail(Code::kInvalid, "allocate %llu bytes", static_cast<unsigned long long>(bytes));
  if (source.plain()) return allocate(bytes, writable, "*");
  auto buffer = std::make_shared<Buffer>();
  buffer->named = static_cast<bool>(source.file);
  buffer->memfd = std::move(source.file);
  if (!buffer->memfd)
    buffer->memfd.reset(::memfd_create(
        "mc", MFD_CLOEXEC | MFD_ALLOW_SEALING | (source.huge_pages ? MFD_HUGETLB : 0u)));
  if (!buffer->memfd) return fail_errno("memfd of %s", rounded_bytes_text(bytes).c_str());
  const int fd = buffer->memfd.get();
  const uint64_t unit = map_unit(fd);
  const uint64_t mapped = (page_up(bytes) + kPage + unit - 1) / unit * unit;
  const auto no_space = [&]() -> Error {
    if (unit > kPage) return {Code::kNoSpace, huge_pages_wanted(mapped, unit)};
    return {Code::kNoSpace,
            strf("%s of memory: %s", rounded_bytes_text(bytes).c_str(), std::strerror(errno))};
  };
  // On hugetlbfs this reserves the huge pages, or fails if there are too few.
  void* p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return fail(no_space());
  buffer->data = static_cast<std::byte*>(p);
  buffer->mapped = mapped;
  buffer->bytes = bytes;
  if (source.numa >= 0) MC_TRY_(bind_to(p, mapped, source.numa));
  if (auto filled = fill(fd, mapped, unit == kPage); !filled) {
    if (unit == kPage) return fail(filled.error());
    return fail(no_space());
  }
  buffer->writable = writable;
  buffer->location = "*";
  return seal(std::move(buffer));
}

Result<BufferPtr> Registry::seal(BufferPtr buffer) {
  // It keeps its size, so that no peer meets SIGBUS; and where peers may not write, no mapping but
  // ours ever may.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | (buffer->writable ? 0 : F_SEAL_FUTURE_WRITE);
  if (!buffer->named && ::fcntl(buffer->memfd.get(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
    return fail_errno("seal shared memory");
  {
    Lock lock(mutex_);
    buffer->shm_id = next_shm_id_++;
  }
  return insert(std::move(buffer));
}

Result<BufferPtr> Registry::allocate_anonymous(uint64_t bytes, bool writable,
                                               std::string location) {
  auto buffer = std::make_shared<Buffer>();
  // Small buffers stay on small pages; large ones begin where a huge page does.
  const bool huge = bytes >= kHugePage;
  const uint64_t mapped = page_up(bytes), room = mapped + (huge ? kHugePage : 0);
  void* p = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return fail_errno("map %s", rounded_bytes_text(bytes).c_str());
  auto* const start = static_cast<std::byte*>(p);
  const uint64_t skip =
      huge ? (kHugePage - reinterpret_cast<uint64_t>(start) % kHugePage) % kHugePage : 0;
  if (skip > 0) ::munmap(start, skip);
  if (room - skip > mapped) ::munmap(start + skip + mapped, room - skip - mapped);
  buffer->data = start + skip;
  buffer->mapped = mapped;
  buffer->bytes = bytes;
  // A refusal does no harm: small pages work too.
  if (huge) (void)::madvise(buffer->data, mapped, MADV_HUGEPAGE);
  // A child would share the pages until one of the two writes, and leave the NIC the wrong ones.
  if (::madvise(buffer->data, mapped, MADV_DONTFORK) != 0) return fail_errno("keep from children");
  MC_TRY_(fill(buffer->data, mapped));
  buffer->writable = writable;
  buffer->location = std::move(location);
  return insert(std::move(buffer));
}

Result<BufferPtr> Registry::add(std::span<std::byte> memory, bool writable, std::string location) {
  if (memory.empty()) return fail(Code::kInvalid, "register 0 bytes");
  auto buffer = std::make_shared<Buffer>();
  buffer->data = memory.data();
  buffer->bytes = memory.size();
  buffer->writable = writable;
  buffer->location = std::move(location);
  return insert(std::move(buffer));
}

Result<BufferPtr> Registry::add(std::shared_ptr<BufferBackend> backend, std::byte* data,
                                uint64_t bytes, bool writable, std::string location,
                                Shared shared) {
  if (bytes == 0) return fail(Code::kInvalid, "register 0 bytes");
  auto buffer = std::make_shared<Buffer>();
  buffer->backend = std::move(backend);
  buffer->device_handle = std::move(shared.handle);
  buffer->device_writes = shared.writes;
  buffer->memory_location = shared.at;
  buffer->data = data;
  buffer->bytes = bytes;
  buffer->writable = writable;
  buffer->location = std::move(location);
  return insert(std::move(buffer));
}

Result<BufferPtr> Registry::add(const std::shared_ptr<FileStore>& file, bool writable) {
  auto buffer = std::make_shared<Buffer>();
  buffer->backend = file;
  buffer->file = file;
  buffer->bytes = file->bytes();
  buffer->writable = writable;
  buffer->location = "file";
  buffer->witness.dev = file->dev();
  buffer->witness.ino = file->ino();
  return insert(std::move(buffer));
}

void Registry::remove(const BufferPtr& buffer) {
  {
    Lock lock(mutex_);
    if (buffers_.erase(buffer->offset) == 0) return;
    if (buffer->backend != nullptr && devices_.erase(buffer->data) > 0)
      devices_known_.store(devices_.size(), std::memory_order_release);
    mark(*buffer, 0);
    buffer->withdrawn.store(true, std::memory_order_release);
    ++generation_.n;
    ++version_;
  }
  if (observer_ != nullptr) observer_->withdraw(*buffer);
  Lock lock(mutex_);
  while (buffer->shm_id == 0 && buffer->pins > 0) unpinned_.wait(mutex_);
}

void Registry::fence(std::span<FencedRange> ranges) const {
  Lock lock(mutex_);
  for (const auto& [offset, b] : buffers_)
    if (b->slots != nullptr) check_write_slots(b->slots, ranges);
}

Generation Registry::generation() const {
  Lock lock(mutex_);
  return generation_;
}

uint64_t Registry::version() const {
  Lock lock(mutex_);
  return version_;
}

std::vector<BufferInfo> Registry::describe() const {
  Lock lock(mutex_);
  std::vector<BufferInfo> out;
  for (const auto& [offset, b] : buffers_) {
    BufferInfo info;
    info.offset = offset;
    info.bytes = b->bytes;
    info.location = b->location;
    info.shm_id = b->shm_id;
    info.writable = b->writable;
    info.base_addr = reinterpret_cast<uint64_t>(b->data);
    if (b->shm_id == 0 && b->backend == nullptr)
      info.remote_addr = reinterpret_cast<uint64_t>(b->data);
    if (b->file != nullptr) {
      info.path = b->file->path();
      info.dev = b->witness.dev;
      info.ino = b->witness.ino;
    }
    info.device_handle.bytes = b->device_handle;
    info.device_writes = b->device_writes;
    if (info.remote_addr != 0 || b->file != nullptr || !b->device_handle.empty()) {
      info.alive_addr = reinterpret_cast<uint64_t>(&b->witness);
      info.alive = b->witness.alive.load(std::memory_order_relaxed);
    }
    if (observer_ != nullptr) observer_->describe(*b, info);
    out.push_back(std::move(info));
  }
  return out;
}

Result<BufferPtr> Registry::pin(uint64_t offset, uint64_t bytes) const {
  Lock lock(mutex_);
  auto it = buffers_.upper_bound(offset);
  if (it != buffers_.begin()) {
    const BufferPtr& b = std::prev(it)->second;
    const uint64_t at = offset - b->offset;
    if (at <= b->bytes && bytes <= b->bytes - at) return in_use(b);
  }
  return fail(Code::kInvalid, "bytes %llu+%llu are outside the segment's buffers",
              static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes));
}

BufferPtr Registry::in_use(const BufferPtr& buffer) const {
  ++buffer->pins;
  return BufferPtr(buffer.get(), [this, owner = buffer](Buffer* pinned) {
    Lock unpin(mutex_);
    if (--pinned->pins == 0) unpinned_.notify_all();
  });
}

Result<BufferPtr> Registry::pin_device(const std::byte* local, uint64_t bytes) const {
  Lock lock(mutex_);
  auto it = devices_.upper_bound(local);
  if (it == devices_.begin()) return BufferPtr();
  const BufferPtr& b = std::prev(it)->second;
  const auto at = static_cast<uint64_t>(local - b->data);
  if (at >= b->bytes) return BufferPtr();
  if (bytes > b->bytes - at)
    return fail(Code::kInvalid, "%llu bytes at %llu pass the end of a buffer of %llu at %s",
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(at),
                static_cast<unsigned long long>(b->bytes), b->location.c_str());
  return in_use(b);
}

uint64_t Registry::device_at(const std::byte* local) const {
  if (!has_devices()) return 0;
  const auto device = pin_device(local, 1);
  return device && *device != nullptr ? (*device)->offset + 1 : 0;
}

std::vector<BufferPtr> Registry::mapped(std::span<const std::span<const std::byte>> ranges) const {
  std::map<const std::byte*, BufferPtr> all;
  {
    Lock lock(mutex_);
    for (const auto& [offset, b] : buffers_)
      if (b->mapped > 0) all.emplace(b->data, b);
  }
  std::vector<BufferPtr> out;
  for (const auto& range : ranges) {
    auto it = all.upper_bound(range.data());
    if (it != all.begin() &&
        range.data() - std::prev(it)->first < static_cast<ptrdiff_t>(std::prev(it)->second->mapped))
      --it;
    for (; it != all.end() && it->first < range.data() + range.size(); it = all.erase(it))
      out.push_back(it->second);
  }
  return out;
}

BufferPtr Registry::by_shm_id(uint32_t id) const {
  Lock lock(mutex_);
  for (const auto& [offset, b] : buffers_)
    if (b->shm_id == id) return b;
  return nullptr;
}

}  // namespace mc::xfer
