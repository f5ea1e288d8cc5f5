// Moves bytes between processes of one host. It uses plain copies in the same process, mapped
// memfds for engine-owned memory, and process_vm_readv/writev for memory of the application.
//
// The submitting thread copies small slices. A few copy threads take larger ones, large batches of
// small ones, and the first slice of each mapping. A caller that waits anyway copies itself, and
// idle copy threads help with large copies: at most `workers` threads copy at a time (callers
// always may). Small transfers make no system call.
//
// A guarded write says in a table of the owner's memory where it writes, for as long as it does
// (xfer/memory/write_slots.h): so the owner knows whom to wait for before it gives a range on.
//
// A completed transfer guarantees: the bytes were copied while the owner offered this memory (its
// word in the mapping), the guard held, and the owner's process was alive. For a large transfer
// (kAskBytes) it was alive after the copy; for a small one, at some time in the last millisecond
// (host.h: kAliveFor). The memory of a process that died stays valid here; writes to it in that
// millisecond are lost with it, as if it had died right after.
//
// Thread: any; the copy threads are its own.
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/transport.h"
#include "xfer/memory/registry.h"
#include "xfer/transports/shm/mapping.h"
#include "xfer/transports/shm/parallel_copy.h"
#include "xfer/transports/shm/thread_copy_cache.h"

namespace mc::xfer {

struct LocalRange {
  Op op;
  uint64_t offset;
  const Guard& guard;
};

class LocalTransport final : public Transport {
 public:
  struct Config {
    uint32_t workers = 1;
    bool peers = false;          // reach other processes, not only this one
    bool yields_writes = false;  // process_vm_writev cannot be recalled: leave it to tcp
    std::string copies_file{};   // see MachineCopies
  };
  LocalTransport(Sink& sink, const Registry& registry, const Clock& clock, Config config);
  ~LocalTransport() override { stop(); }
  const char* name() const override { return config_.peers ? "shm" : "self"; }
  bool reaches(const Peer& peer, uint64_t offset, Op op) const override;
  void submit(SlicePtr slice) override;
  void forget(const PeerPtr& peer) override;
  void stop() override;

  // Copies a small checked request to or from memory that this thread used before. False: it did
  // not; try copy_now(). `together`: bytes of the copies that it is one of.
  bool copy_again(const Request& request, Time now, uint64_t together = 0);
  // Before the first of them: what such copies count.
  void count_cached_copies(Counter& slices, Counter& bytes, Counter& requests) {
    copy_cache_.count(slices, bytes, requests);
  }
  // Copies a whole checked request on this thread if that needs no answer of another process.
  // False: not copied; submit it in slices, whose outcome then counts.
  bool copy_now(const Request& request, const PeerPtr& peer, Time now, uint64_t together = 0);

 private:
  // Where a piece of a peer's memory is in this process.
  struct There {
    std::byte* data = nullptr;
    std::byte* guard = nullptr;        // null: not guarded
    const std::byte* alive = nullptr;  // the owner's word; null: of this process
    WriteSlot* slots = nullptr;        // where it is said; null: not a guarded write
  };
  struct Held {  // and what keeps it there
    There there;
    MappingPtr mapping;  // of another process
    BufferPtr own;       // of this one
  };
  // One entry of the queue: a slice, or a copy that its caller shares.
  struct Work {
    SlicePtr slice;
    std::shared_ptr<ParallelCopy> job;
  };
  // A slice on its way: what was found out before its first byte is copied.
  struct Job {
    SlicePtr slice;
    Result<> outcome;
    const BufferInfo* buffer = nullptr;
    Held held;
    bool mapped = false;  // it is copied, not moved by system calls
  };
  Result<> aim(Job& job, const Job* before);
  Result<> move(const Job& job, const Ahead& next);
  Ahead begin_of(const Job& job) const;
  void finish_all(std::span<Job> jobs);
  Result<> raise(const Slice& slice);
  Result<Held> locate(const PeerPtr& peer, const BufferInfo& buffer, const LocalRange& range,
                      const Slice* waits);  // null: for no mapping
  struct BufferMapping {                    // of a whole buffer
    std::byte* data = nullptr;
    const std::byte* alive = nullptr;
    bool writable = false;
    WriteSlot* slots = nullptr;
  };
  static BufferMapping mapping_of(const Mapping& m) {
    return {m.data, m.alive, m.writable, m.slots};
  }
  static Result<There> place(const Peer& peer, const BufferInfo& buffer, const LocalRange& range,
                             const BufferMapping& at);
  bool copy_from_cache(CopyCacheSlot& slot, const Request& request, Time now, uint64_t together)
      MC_REQUIRES(slot.mutex);
  // May the bytes be touched, and are they still the owner's when they were?
  Result<> before_copy(const There& there, const Peer& peer, const LocalRange& range,
                       Time now) const;
  Result<> after_copy(const There& there, const Peer& peer, const LocalRange& range,
                      uint64_t bytes) const;
  Result<> valid(const There& there, const Peer& peer, const LocalRange& range) const;
  bool copy_with_help(const Rows& rows, Time deadline, const Peer& peer);
  bool at_once(const Slice& slice) const;
  void run();
  bool take(std::vector<Work>& work, bool& stopped);

  static constexpr uint64_t kInlineBytes = 512 * 1024;
  static constexpr uint64_t kCrowdBytes = 8 << 20;  // submitted at once: for the copy threads
  static constexpr uint64_t kAskBytes = 4 << 20;    // a system call is cheap compared with the copy
  static constexpr uint64_t kAloneBytes = 2 << 20;  // less is copied before help has woken up
  static constexpr uint64_t kPieceBytes = 512 * 1024;
  // Pieces of an unshared copy: libc copies what is longer than the second cache by another,
  // faster loop. Deadlines and withdrawals are looked at between pieces.
  static constexpr uint64_t kLonePieceBytes = 4 << 20;
  Sink& sink_;
  const Registry& registry_;
  const Clock& clock_;
  const Config config_;
  CopyRule rule_;
  Mappings mappings_;
  ThreadCopyCache copy_cache_;
  std::atomic<uint32_t> copying_{0};  // threads that copy much now
  Mutex mutex_;
  Condition changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::deque<Work> queue_ MC_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace mc::xfer
