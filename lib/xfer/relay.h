// Transfers of which an end in this process is memory that only its own copies reach (a device's):
// through host staging buffers, chunk by chunk, several in flight, so that the copy of one chunk
// and the way of another over a transport run at the same time.
//
//   write:  device --copy--> staging --transport--> peer
//   read:   device <--copy-- staging <--transport-- peer
//
// A peer's device memory is its owner's to stage. A chunk that a transport fails goes on with the
// next one, as every slice does; a copy that fails ends the slice.
//
// Thread: any; the copies run on its own threads, started when first used.
// Source: TENT paper 3.2.3 (relay paths).
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "xfer/registry.h"
#include "xfer/task.h"

namespace mc::xfer {

class Relay {
 public:
  struct Config {
    uint64_t chunk = 512 * 1024;  // bytes of a staging buffer
    uint32_t buffers = 8;         // at least 2
    uint32_t threads = 2;
  };
  using Send = std::function<void(SlicePtr)>;  // to whichever transport reaches
  using Done = std::function<void(SlicePtr, const Result<>&)>;
  Relay(Send send, Done done, const Clock& clock, Config config);
  ~Relay() { stop(); }

  // `local`: the buffer that the slice's local side lies in, or null: host memory. `remote`: the
  // one that its remote side lies in when that is this process's own; null: a transport's to reach.
  void submit(SlicePtr slice, BufferPtr local, BufferPtr remote);
  // After the transports stopped: what they gave back is ended here, what waits fails.
  void stop();

 private:
  struct Job {
    SlicePtr slice;
    BufferPtr local, remote;
    std::vector<Piece> chunks;
    size_t next = 0, flying = 0;
    Result<> outcome;
  };
  using JobPtr = std::shared_ptr<Job>;
  struct Chunk {
    JobPtr job;
    Piece piece;
    std::byte* staging = nullptr;
  };
  void start() MC_REQUIRES(mutex_);
  void run();
  void fill(Chunk chunk);   // staging from the source
  void drain(Chunk chunk);  // the destination from staging
  void send(const Chunk& chunk, std::function<void(const Result<>&)> settled);
  Result<> copy_local(const Chunk& chunk, bool into_staging);
  Result<> copy_remote(const Chunk& chunk, bool into_staging);
  Result<> over(const Slice& slice) const;
  void ended(const Chunk& chunk, const Result<>& outcome);

  const Send send_;
  const Done done_;
  const Clock& clock_;
  const Config config_;
  Mutex mutex_;
  Condition changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::vector<std::byte> staging_;
  std::vector<std::byte*> free_ MC_GUARDED_BY(mutex_);
  std::deque<JobPtr> jobs_ MC_GUARDED_BY(mutex_);   // with chunks not begun
  std::deque<Chunk> filled_ MC_GUARDED_BY(mutex_);  // to be drained
  std::vector<std::thread> threads_;
};

}  // namespace mc::xfer
