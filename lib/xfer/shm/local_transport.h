// Moves bytes between processes of one host: plain copies in the same process, mapped memfds of
// engine-owned memory, process_vm_readv/writev for memory the application brought.
//
// Small slices are copied by the submitting thread; larger ones by a few copy threads.
// Thread: any; the copy threads are its own.
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
  LocalTransport(Sink& sink, const Registry& registry, const Clock& clock, uint32_t workers);
  ~LocalTransport() override;
  const char* name() const override { return "shm"; }
  bool reaches(const Peer& peer, uint64_t offset) const override;
  void submit(SlicePtr slice) override;
  void forget(const PeerPtr& peer) override;

 private:
  struct Mapping;
  using MappingPtr = std::shared_ptr<const Mapping>;
  Result<> move(const Slice& slice);
  Result<> move_mapped(const Slice& slice, const BufferInfo& buffer);
  Result<> move_vm(const Slice& slice, const BufferInfo& buffer);
  Result<> raise(const Slice& slice);
  // The peer's buffer in this process's address space.
  Result<MappingPtr> mapping(const PeerPtr& peer, const BufferInfo& buffer);
  void run();
  void finish(SlicePtr slice);

  static constexpr uint64_t kInlineBytes = 512 * 1024;
  Sink& sink_;
  const Registry& registry_;
  const Clock& clock_;
  Mutex mutex_;
  Condition changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::deque<SlicePtr> queue_ MC_GUARDED_BY(mutex_);
  std::map<std::pair<const Peer*, uint32_t>, MappingPtr> mappings_ MC_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace mc::xfer
