// Moves bytes between processes of one host: plain copies in the same process, mapped memfds of
// engine-owned memory, process_vm_readv/writev for memory the application brought.
//
// Small slices are copied by the submitting thread; larger ones, and the first of each mapping, by
// a few copy threads. Thread: any; the copy threads are its own.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "xfer/registry.h"
#include "xfer/transport.h"

namespace mc::xfer {

class LocalTransport final : public Transport {
 public:
  struct Config {
    uint32_t workers = 1;
    bool peers = false;          // reach other processes, not only this one
    bool yields_writes = false;  // process_vm_writev cannot be recalled: leave it to tcp
  };
  LocalTransport(Sink& sink, const Registry& registry, const Clock& clock, Config config);
  ~LocalTransport() override { stop(); }
  const char* name() const override { return config_.peers ? "shm" : "self"; }
  bool reaches(const Peer& peer, uint64_t offset, Op op) const override;
  void submit(SlicePtr slice) override;
  void forget(const PeerPtr& peer) override;
  void stop() override;

 private:
  struct Mapping;
  using MappingPtr = std::shared_ptr<const Mapping>;
  using MappingKey = std::pair<const Peer*, uint32_t>;
  Result<> move(const Slice& slice);
  Result<> move_mapped(const Slice& slice, const BufferInfo& buffer);
  Result<> move_vm(const Slice& slice, const BufferInfo& buffer);
  Result<> raise(const Slice& slice);
  // The peer's buffer in this process's address space.
  Result<MappingPtr> mapping(const PeerPtr& peer, const BufferInfo& buffer);
  Result<MappingPtr> map(const PeerPtr& peer, const BufferInfo& buffer) const;
  bool at_once(const Slice& slice);
  void run();
  void finish(SlicePtr slice);

  static constexpr uint64_t kInlineBytes = 512 * 1024;
  Sink& sink_;
  const Registry& registry_;
  const Clock& clock_;
  const Config config_;
  Mutex mutex_;
  Condition changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::deque<SlicePtr> queue_ MC_GUARDED_BY(mutex_);
  Mutex mappings_mutex_;
  std::map<MappingKey, MappingPtr> mappings_ MC_GUARDED_BY(mappings_mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace mc::xfer
