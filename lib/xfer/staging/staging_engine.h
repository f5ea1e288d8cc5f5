// Transfers to or from device memory that the host cannot address.
//
// If this process can address both ends (its own memory, or device memory that another process of
// this host shares), the device copies the bytes directly, or through host staging buffers. A
// peer's device memory may also be reached by its owner, over a transport, and local device memory
// by NICs (GPUDirect). The measured cost decides among these paths (xfer/staging/path_cost.h).
// Staged transfers move chunk by chunk, several in flight, so that the copy of one chunk overlaps
// the transfer of another:
//
//   write:  device --copy--> staging --transport--> peer
//   read:   device <--copy-- staging <--transport-- peer
//
// Errors: a chunk that fails on one transport moves to the next, as every slice does. A copy that
// fails ends the slice, unless another path is left.
// Thread: any; copies run on its own threads, started on first use.
// Source: TENT paper 3.2.3 (relay paths).
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "xfer/core/task.h"
#include "xfer/memory/memory_kind.h"
#include "xfer/memory/registry.h"
#include "xfer/staging/path_cost.h"

namespace mc::xfer {

class StagingEngine {
 public:
  struct Config {
    uint64_t chunk = 512 * 1024;  // bytes of a staging buffer
    uint32_t buffers = 8;         // at least 2
    uint32_t threads = 2;
  };
  using Send = std::function<void(SlicePtr)>;  // to a transport that reaches the peer
  using Done = std::function<void(SlicePtr, const Result<>&)>;
  StagingEngine(Send send, Done done, const Clock& clock, Config config);
  ~StagingEngine() { stop(); }

  // Indexes of PathCostModel.
  enum CopyPath : uint32_t { kDirect = 0, kStaged = 1, kOwner = 2, kNic = 3 };
  static const char* name(CopyPath path) {
    constexpr const char* kNames[] = {"direct", "staged", "owner", "nic"};
    return kNames[path];
  }
  struct Ends {
    BufferPtr local;     // device buffer of the local side; null: host memory
    BufferPtr remote;    // buffer of the remote side, if this process can copy it; else null
    bool owned = false;  // `remote` belongs to a peer, which a transport reaches too
    bool taken = false;  // a transport reaches `local` without a copy
  };
  void submit(SlicePtr slice, Ends ends);
  // Pins the staging memory for copies of this kind. Call it before the first slice of the kind.
  void stage_for(MemoryKind& kind);
  using Counters = std::array<Counter*, PathCostModel::kPaths>;
  void count(const Counters& paths) {
    counters_ = paths;
  }  // slices that went each; before the first
  // Call it after the transports stopped. Completes what they returned and fails what waits.
  void stop();

 private:
  enum HostEnd : uint8_t { kNoHost, kPinned, kUnpinned };  // of a job with a device
  struct Job {
    SlicePtr slice;
    BufferPtr local, remote;
    bool owned = false;
    HostEnd host = kUnpinned;
    uint32_t usable = 0;  // paths, of those that were not tried
    CopyPath path = kStaged;
    bool weighed = false;  // there was a choice: its time is a sample
    Time begun{};
    std::vector<Piece> chunks;
    size_t next = 0, in_flight = 0;
    Result<> outcome;
  };
  using JobPtr = std::shared_ptr<Job>;
  struct Chunk {
    JobPtr job;
    Piece piece;
    std::byte* staging = nullptr;
  };
  void start() MC_REQUIRES(mutex_);
  void allocate() MC_REQUIRES(mutex_);
  void enqueue(const JobPtr& job) MC_REQUIRES(mutex_);
  bool begin(Chunk& chunk) MC_REQUIRES(mutex_);
  bool try_another_path(const JobPtr& job, const Result<>& why) MC_REQUIRES(mutex_);
  static HostEnd host_end(const Job& job);
  PathCostModel& costs_of(const Job& job) MC_REQUIRES(mutex_);
  void run();
  Result<> copy_direct(const Chunk& chunk);
  void fill(Chunk chunk);   // copies the source to staging
  void drain(Chunk chunk);  // copies staging to the destination
  void send(const Chunk& chunk, std::function<void(const Result<>&)> completed);
  static Result<> copy_local(const Chunk& chunk, bool into_staging);
  static Result<> copy_remote(const Chunk& chunk, bool into_staging);
  Result<> cancelled_or_expired(const Slice& slice) const;
  void ended(const Chunk& chunk, const Result<>& outcome);

  const Send send_;
  const Done done_;
  const Clock& clock_;
  const Config config_;
  Counters counters_{};
  Mutex mutex_;
  Condition changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::vector<std::byte> staging_;
  std::vector<device::Memory> pins_ MC_GUARDED_BY(mutex_);  // of staging_
  std::vector<std::byte*> free_ MC_GUARDED_BY(mutex_);
  std::deque<JobPtr> jobs_ MC_GUARDED_BY(mutex_);      // staged, with chunks not begun
  std::deque<JobPtr> unstaged_ MC_GUARDED_BY(mutex_);  // without staging
  // By operation, by local end (host or device), by remote end (ours or a peer's), by the host's.
  PathCostModel costs_[2][2][2][3] MC_GUARDED_BY(mutex_);
  std::deque<Chunk> filled_ MC_GUARDED_BY(mutex_);  // to be drained
  std::vector<std::thread> threads_;
};

}  // namespace mc::xfer
