// Transfers of which an end is memory that only its own copies reach (a device's).
//
// Where both ends are at hand (of this process, or a device's memory that another process of this
// host shares), the device's own copies move the bytes straight, or through host staging buffers;
// a peer's may also go by its owner, cancelled_or_expired a transport. Which it is, their cost
// decides, as it was measured (xfer/staging/path_cost.h). So it is where NICs reach the local
// memory themselves (GPUDirect). Otherwise they are staged, chunk by chunk, several in flight, so
// that the copy of one chunk and the transfer of another over a transport run at the same time:
//
//   write:  device --copy--> staging --transport--> peer
//   read:   device <--copy-- staging <--transport-- peer
//
// A chunk that a transport fails goes on with the next one, as every slice does; a copy that fails
// ends the slice, but where another path is left.
//
// Thread: any; the copies run on its own threads, started when first used.
// Source: TENT paper 3.2.3 (staging paths).
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
  using Send = std::function<void(SlicePtr)>;  // to whichever transport reaches
  using Done = std::function<void(SlicePtr, const Result<>&)>;
  StagingEngine(Send send, Done done, const Clock& clock, Config config);
  ~StagingEngine() { stop(); }

  // The numbers of PathCostModel.
  enum CopyPath : uint32_t { kDirect = 0, kStaged = 1, kOwner = 2, kNic = 3 };
  static const char* name(CopyPath path) {
    constexpr const char* kNames[] = {"direct", "staged", "owner", "nic"};
    return kNames[path];
  }
  struct Ends {
    BufferPtr local;     // that the slice's local side lies in; null: host memory
    BufferPtr remote;    // the same, when copies of this process reach it; null: a transport's to
    bool owned = false;  // the remote one is a peer's, which a transport reaches too
    bool taken = false;  // a transport takes the local one as it is
  };
  void submit(SlicePtr slice, Ends ends);
  // Staging memory as the kind's copies want it. Before the first slice of that kind.
  void stage_for(MemoryKind& kind);
  using Counters = std::array<Counter*, PathCostModel::kPaths>;
  void count(const Counters& paths) {
    counters_ = paths;
  }  // slices that went each; before the first
  // After the transports stopped: what they gave back is ended here, what waits fails.
  void stop();

 private:
  struct Job {
    SlicePtr slice;
    BufferPtr local, remote;
    bool owned = false;
    uint32_t usable = 0;  // paths, of those that were not tried
    CopyPath path = kStaged;
    bool weighed = false;  // there was a choice: what it takes is a sample
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
  PathCostModel& costs_of(const Job& job) MC_REQUIRES(mutex_);
  void run();
  Result<> copy_direct(const Chunk& chunk);
  void fill(Chunk chunk);   // staging from the source
  void drain(Chunk chunk);  // the destination from staging
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
  std::deque<JobPtr> jobs_ MC_GUARDED_BY(mutex_);      // with chunks not begun, to be staged
  std::deque<JobPtr> unstaged_ MC_GUARDED_BY(mutex_);  // those that need no staging
  // By what the ends are: the local one a device's or the host's, the remote one ours or a peer's.
  PathCostModel costs_[2][2][2] MC_GUARDED_BY(mutex_);
  std::deque<Chunk> filled_ MC_GUARDED_BY(mutex_);  // to be drained
  std::vector<std::thread> threads_;
};

}  // namespace mc::xfer
