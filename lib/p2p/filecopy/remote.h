// A folder that a peer offers (service.h), as a file tree to copy from or to.
//
// Requires: at most `lanes` calls at a time; more is a bug.
// Errors: file_tree.h; kUnsupported when the peer offers no folder.
// Thread: any.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "p2p/filecopy/messages.h"
#include "rpc/client.h"
#include "xfer/engine.h"

namespace mc::p2p::filecopy {

class Remote : public FileTree {
 public:
  // Borrows up to `lanes` slots of the peer's memory, at least one. `budget`: for each call and for
  // each piece.
  static Result<std::unique_ptr<Remote>> open(xfer::Engine& engine, const Clock& clock,
                                              const std::string& address, uint32_t lanes,
                                              Duration budget);
  ~Remote() override;  // gives the slots back
  size_t lanes() const { return slots_.size(); }
  xfer::SegmentHandle segment() const { return segment_; }

  Result<TreeEntry> look(const std::string& path) override;
  Result<Page> list(const std::string& path, const std::string& after) override;
  Result<std::vector<uint64_t>> sums(const TreeEntry& file, uint64_t first,
                                     uint32_t count) override;
  Result<uint64_t> load(const TreeEntry& file, uint64_t piece, std::span<std::byte> into) override;
  Result<bool> make_folder(const std::string& path, uint32_t mode) override;
  Result<> set_mode(const std::string& path, uint32_t mode) override;
  Result<std::unique_ptr<PartialFile>> begin(const TreeEntry& file) override;

 private:
  class RemotePart;
  struct TransferSlot {
    std::unique_ptr<rpc::SyncClient> client;
    SlotLease lease;
    Time leased{};
    bool taken = false;
  };
  class Taken;  // a slot, for one call
  Remote(xfer::Engine& engine, const Clock& clock, std::string address, Duration budget)
      : engine_(engine), clock_(clock), address_(std::move(address)), budget_(budget) {}
  template <class M>
  Result<typename M::Reply> call(const M& message);
  Result<> renew(TransferSlot& slot);
  Result<> move(xfer::Op op, const TransferSlot& slot, std::span<std::byte> memory);

  xfer::Engine& engine_;
  const Clock& clock_;
  const std::string address_;
  const Duration budget_;
  xfer::SegmentHandle segment_ = 0;
  Mutex mutex_;
  std::vector<std::unique_ptr<TransferSlot>> slots_;  // which are taken is the mutex's
};

}  // namespace mc::p2p::filecopy
