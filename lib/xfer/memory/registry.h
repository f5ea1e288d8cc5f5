// The buffers that this process offers, in one address space of offsets, with write rights. A
// server of a request pins the buffer: engine-owned memory is not unmapped during a copy, and
// withdrawing memory of the application waits for the copies that touch it.
//
// Thread: any (one mutex, held for lookups only).
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "device/device.h"
#include "io/fd.h"
#include "xfer/core/memory_location.h"
#include "xfer/core/messages.h"
#include "xfer/memory/buffer_backend.h"
#include "xfer/memory/memory_source.h"
#include "xfer/memory/write_slots.h"

namespace mc::xfer {

class FileStore;

// One registered range. Engine-owned memory is a memfd with one extra page: the page's
// first word holds the segment generation while the buffer is offered and 0 afterwards, so that
// peers that have it mapped notice; the rest of it is the table of writes under way. Where no peer
// may map it, it is anonymous memory instead.
struct Buffer {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t mapped = 0;  // by the engine
  uint64_t offset = 0;
  uint32_t shm_id = 0;  // 0: not to be mapped by peers
  io::Fd memfd;
  bool named = false;  // the memfd is the application's file, which cannot be sealed
  bool writable = false;
  std::string location;
  // Not null: the bytes are elsewhere, and `data` (null, or a device's address) is not for the
  // host.
  std::shared_ptr<BufferBackend> backend;
  std::shared_ptr<FileStore> file;     // the backend, when it is a file
  std::string device_handle;           // opens it to processes of this host; "": nothing does
  bool device_writes = false;          // they may write by it
  MemoryLocation memory_location;      // of a device's memory
  std::vector<device::Memory> pinned;  // host memory, for copies of devices
  // What peers with process_vm_readv look at: of memory of the application, and of files.
  struct Witness {
    std::atomic<uint64_t> alive{0};  // 0: withdrawn
    uint64_t dev = 0, ino = 0;
  } witness;
  WriteSlot* slots = nullptr;              // of host memory: the writes under way
  std::unique_ptr<WriteSlot[]> own_slots;  // where no peer maps it
  std::atomic<bool> withdrawn{false};      // give up what is under way on it
  uint32_t pins = 0;                       // of the registry's mutex
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();  // unmaps what the engine mapped
};
using BufferPtr = std::shared_ptr<Buffer>;

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t page_up(uint64_t n) { return (n + kPage - 1) / kPage * kPage; }

// Registers each buffer with NICs before it is offered, and deregisters it after it was withdrawn.
// Called without the registry's lock, but describe() is called with it.
class RegistrationObserver {
 public:
  virtual ~RegistrationObserver() = default;
  virtual void offer(const Buffer& buffer) = 0;
  virtual void withdraw(const Buffer& buffer) = 0;  // no peer reaches it when this returns
  virtual void describe(const Buffer& buffer, BufferInfo& info) const = 0;
};

class Registry {
 public:
  explicit Registry(Generation first) : generation_(first) {}
  void observe(std::shared_ptr<RegistrationObserver> observer);  // before the first buffer
  // From here on allocate() gives anonymous memory, in huge pages where the kernel has some: NICs
  // then keep few translations. Peers cannot map it.
  void allocate_unshared() { unshared_.store(true); }
  // Maps a new zeroed memfd, all of it allocated. Errors: kNoSpace.
  Result<BufferPtr> allocate(uint64_t bytes, bool writable, std::string location);
  // The same from elsewhere. kInvalid: a NUMA node that is not there.
  Result<BufferPtr> allocate_from(MemorySource source, uint64_t bytes, bool writable);
  Result<BufferPtr> add(std::span<std::byte> memory, bool writable, std::string location);
  // Bytes that only `backend` reaches, at `data` in its own address space, if it has one.
  struct Shared {  // device_handle and device_writes
    std::string handle;
    bool writes = false;
    MemoryLocation at{};
  };
  Result<BufferPtr> add(std::shared_ptr<BufferBackend> backend, std::byte* data, uint64_t bytes,
                        bool writable, std::string location, Shared shared = {"", false, {}});
  Result<BufferPtr> add(const std::shared_ptr<FileStore>& file, bool writable);
  // Moves the generation on. Memory of the application is free when this returns.
  void remove(const BufferPtr& buffer);

  Generation generation() const;
  uint64_t version() const;                  // changes with every buffer added or removed
  std::vector<BufferInfo> describe() const;  // by offset
  // The buffer that holds all of [offset, offset + bytes), in use until the pointer goes. kInvalid,
  // naming the range, if none. The pointer must not outlive the registry.
  Result<BufferPtr> pin(uint64_t offset, uint64_t bytes) const;
  // The buffer behind a backend at whose address `local` lies, in use until the pointer goes; null
  // when it lies in none, kInvalid when the range passes its end.
  Result<BufferPtr> pin_device(const std::byte* local, uint64_t bytes) const;
  bool has_devices() const { return devices_known_.load(std::memory_order_acquire) > 0; }
  uint64_t device_at(const std::byte* local) const;  // names that buffer; 0: none
  BufferPtr by_shm_id(uint32_t id) const;
  // The buffers with memory of the registry's own that these ranges touch, each once. They stay
  // mapped as long as they are referenced, removed or not.
  std::vector<BufferPtr> mapped(std::span<const std::span<const std::byte>> ranges) const;
  // Clears `done` of the ranges into which a process may still copy (write_slots.h).
  void fence(std::span<FencedRange> ranges) const;

 private:
  Result<BufferPtr> allocate_anonymous(uint64_t bytes, bool writable, std::string location);
  Result<BufferPtr> seal(BufferPtr buffer);
  Result<BufferPtr> insert(BufferPtr buffer);
  Result<> insert_locked(const BufferPtr& buffer) MC_REQUIRES(mutex_);
  BufferPtr in_use(const BufferPtr& buffer) const MC_REQUIRES(mutex_);
  mutable Mutex mutex_;
  mutable Condition unpinned_;
  std::map<uint64_t, BufferPtr> buffers_ MC_GUARDED_BY(mutex_);          // by offset
  std::map<const std::byte*, BufferPtr> devices_ MC_GUARDED_BY(mutex_);  // by address
  std::atomic<size_t> devices_known_{0};
  std::atomic<bool> unshared_{false};
  std::shared_ptr<RegistrationObserver> observer_;
  uint64_t next_offset_ MC_GUARDED_BY(mutex_) = 0;
  uint32_t next_shm_id_ MC_GUARDED_BY(mutex_) = 1;
  uint64_t version_ MC_GUARDED_BY(mutex_) = 0;
  Generation generation_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer
