// Offers a folder to peers: lists, sums, loads and, if it is writable, stores files. It loads
// pieces into slots of memory that peers read, and stores what peers wrote into their slots. A
// slot is leased to one copier. The lease expires when the copier is silent for kSlotIdle. Slots
// are not trusted: the checksum of each piece shows whether another copier wrote to the slot.
//
// Errors: file_tree.h; kBusy when all slots are leased or too many calls wait; kDenied for writes
// to a folder that is not writable.
// Thread: the loop's; its own threads read and write files.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "io/loop.h"
#include "p2p/filecopy/messages.h"
#include "p2p/filecopy/tree.h"
#include "xfer/engine.h"

namespace mc::rpc {
class Server;
}

namespace mc::p2p::filecopy {

class Service {
 public:
  struct Config {
    bool writable = false;
    uint32_t threads = 2;
    uint64_t seed = 1;  // of tickets
  };
  // `memory` is cut into slots; peers may write to it when the folder is writable.
  static Result<std::unique_ptr<Service>> open(io::Loop& loop, const std::string& folder,
                                               xfer::Memory memory, Config config);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  void serve(rpc::Server& server);

  static constexpr Duration kSlotIdle = std::chrono::seconds(60);
  static constexpr size_t kPartsMax = 256, kQueuedMax = 1024;

 private:
  struct LeasedSlot {
    uint64_t ticket = 0;  // 0: free
    Time used{};
  };
  struct Upload {  // a file some peer writes
    explicit Upload(std::string p) : path(std::move(p)) {}
    const std::string path;
    Time used{};  // the loop's
    Mutex mutex;
    std::unique_ptr<PartialFile> part MC_GUARDED_BY(mutex);  // null: ended
  };
  using UploadPtr = std::shared_ptr<Upload>;
  Service(io::Loop& loop, std::unique_ptr<Tree> tree, xfer::Memory memory, Config config);
  // Answers M with what `prepare`, on the loop, makes: an error, or work for a thread.
  template <class M>
  void answer(
      rpc::Server& server,
      std::function<Result<std::function<Result<typename M::Reply>()>>(const M&, Time)> prepare);
  void serve_reading(rpc::Server& server);
  void serve_writing(rpc::Server& server);
  bool enqueue(std::function<void()> work);
  void work();
  void post(std::function<void()> task);  // to the loop, however busy it is

  Result<SlotLease> lease(uint64_t ticket, Time now);
  Result<std::span<std::byte>> slot(uint64_t ticket, Time now);
  Result<UploadPtr> upload(uint64_t part, Time now);
  Result<> writable() const;
  uint64_t add_upload(const TreeEntry& file, Time now, std::vector<UploadPtr>& ended);

  io::Loop& loop_;
  const std::unique_ptr<Tree> tree_;
  const xfer::Memory memory_;
  const Config config_;
  Random random_;
  std::vector<LeasedSlot> leased_;
  std::map<uint64_t, UploadPtr> uploads_;
  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> queue_ MC_GUARDED_BY(mutex_);
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  // Tasks that found the loop busy until the end; the owner's thread lets them go.
  std::vector<std::function<void()>> unanswered_ MC_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace mc::p2p::filecopy
