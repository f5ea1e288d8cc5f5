// Moves bytes between local memory and files of this process, or of peers on this host. A peer's
// file must open here too; else its owner serves it over tcp. One worker with an io_uring keeps up
// to `depth` operations in flight. If the caller waits for a small transfer, the caller moves it
// itself, which saves two wake-ups. A write to a peer's file cannot be recalled when the peer
// withdraws it, so it is left to tcp where that reaches.
//
// Cancellation and deadlines are checked between operations (1 MiB at most).
// Thread: any; it starts its own worker with the first slice that needs one.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/transport.h"
#include "xfer/memory/file_queue.h"
#include "xfer/memory/registry.h"

namespace mc::xfer {

class FileTransport final : public Transport {
 public:
  struct Config {
    uint32_t depth = 32;         // operations under way
    bool uring = true;           // else pread and pwrite
    bool peers = false;          // open files of peers, not only this process's
    bool yields_writes = false;  // leave writes to peers' files to tcp
  };
  FileTransport(Sink& sink, const Registry& registry, const Clock& clock, Config config);
  ~FileTransport() override { stop(); }
  const char* name() const override { return "file"; }
  bool reaches(const Peer& peer, uint64_t offset, Op op) const override;
  void submit(SlicePtr slice) override;
  void submit_awaited(std::span<SlicePtr> slices, Time until) override;
  void forget(const PeerPtr& peer) override;
  void stop() override;

 private:
  // The file behind a slice: of this process and pinned, or of a peer.
  struct Target {
    FileStorePtr file;
    BufferPtr own;
    const BufferInfo* info = nullptr;  // lives as long as the slice's peer
    uint64_t at = 0;                   // where the slice begins in it
  };
  struct Job;
  struct Attached {
    PeerPtr peer;  // as long as it is listed, its address is no other peer's
    FileStorePtr file;
    bool refused = false;
  };
  using Key = std::pair<const Peer*, uint64_t>;

  Result<Target> target(const Slice& slice);
  Result<FileStorePtr> attach(const PeerPtr& peer, const BufferInfo& info);
  Result<> may_go_on(const Slice& slice, const Target& target) const;
  Result<> still_offered(const Slice& slice, const Target& target) const;
  void move_now(SlicePtr slice);
  void enqueue(std::span<SlicePtr> slices);
  Result<> start() MC_REQUIRES(mutex_);
  void work();
  bool take(std::vector<Job>& jobs, std::vector<size_t>& idle, std::deque<size_t>& ready);
  void feed(FileQueue& queue, std::vector<Job>& jobs, std::deque<size_t>& ready);
  void finish(Job& job);

  static constexpr uint64_t kAtOnceBytes = 1u << 20;
  Sink& sink_;
  const Registry& registry_;
  const Clock& clock_;
  const Config config_;
  Mutex mutex_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::deque<SlicePtr> queue_ MC_GUARDED_BY(mutex_);
  FileQueue* sleeper_ MC_GUARDED_BY(mutex_) = nullptr;  // the worker's, while it may be asleep
  std::thread worker_;
  mutable Mutex attached_mutex_;
  std::map<Key, Attached> attached_ MC_GUARDED_BY(attached_mutex_);
};

}  // namespace mc::xfer
