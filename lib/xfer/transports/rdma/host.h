// The state that both sides of rdma share in a process. Private to rdma/*.cc. It has the NICs, the
// memory registered on them, and one thread (the control thread) that talks to other processes.
// The control thread answers peers that want a queue pair, and reopens NICs that come back.
//
// Thread: any, but for members marked as the control thread's. Nothing on that thread waits for a
// peer.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "io/loop.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "xfer/rails/nic_tiers.h"
#include "xfer/transports/rdma/config.h"
#include "xfer/transports/rdma/kept_pairs.h"
#include "xfer/transports/rdma/nic.h"
#include "xfer/transports/rdma/regions.h"
#include "xfer/transports/rdma/served_pairs.h"

namespace mc::xfer::rdma {

class Host final : public Offer, private Nic::Events {
 public:
  // What happens to the NICs and their completions, for the requester's side. lost() and back()
  // are called on the control thread, the others on the NIC's.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual bool drain(Nic& nic, bool wait) = 0;
    virtual void port_changed(Nic& nic, bool up) = 0;
    virtual void lost(Nic& nic, const char* why) = 0;  // drop all queue pairs on it
    virtual void back(Nic& nic) = 0;
  };

  static Result<std::shared_ptr<Host>> open(const Registry& registry, const Clock& clock,
                                            Metrics& metrics, RdmaConfig config);
  ~Host() override { stop(); }
  Result<> start(Listener& listener);
  void silence();  // no call of the listener runs after this returns

  void offer(const Buffer& buffer) override { regions_.offer(buffer); }
  void withdraw(const Buffer& buffer) override { regions_.withdraw(buffer); }
  void describe(const Buffer& buffer, BufferInfo& info) const override {
    regions_.describe(buffer, info);
  }
  void describe_nics(SegmentDescriptor& segment) const override;
  MemoryLocation location_of_gpu(const std::string& pci) const override { return tiers_.gpu(pci); }
  void fence(std::span<FencedRange> ranges) override;
  void stop() override;

  const std::vector<std::unique_ptr<Nic>>& nics() const { return nics_; }
  const NicTiers& tiers() const { return tiers_; }
  Regions& regions() { return regions_; }
  const Regions& regions() const { return regions_; }
  const RdmaConfig& config() const { return config_; }
  const Clock& clock() const { return clock_; }

  // ---- the control thread
  bool post(std::function<void()> task) { return loop_.post(std::move(task)); }
  io::Loop& loop() { return loop_; }
  KeptPairs& kept() { return kept_; }
  Result<rpc::Client*> client(const std::string& address);  // on the control thread

 private:
  Host(const Verbs& verbs, const Registry& registry, const Clock& clock, Metrics& metrics,
       RdmaConfig config, std::vector<std::string> names);
  bool drain(Nic& nic, bool wait) override;
  void port_changed(Nic& nic, bool up, bool moved) override;
  void died(Nic& nic, const DevicePtr& device) override;
  void take_offline(Nic& nic);
  void reopen(Nic& nic);
  Result<DevicePtr> open_device(const std::string& name);

  // ---- what peers ask (accept.cc), on the control thread
  void answer(rpc::Server& server);
  Result<> entitled(const wire::Blob& secret) const;
  Result<QueuePairOpened> open_pair(const OpenQueuePair& m);
  Result<QueuePairClosed> close_pair(const CloseQueuePair& m);

  const Verbs& verbs_;
  const Registry& registry_;
  const Clock& clock_;
  const RdmaConfig config_;
  Regions regions_;
  NicTiers tiers_;
  std::vector<std::unique_ptr<Nic>> nics_;
  io::Loop loop_;
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
  std::map<std::string, std::unique_ptr<rpc::Client>> clients_;
  ServedPairs served_;
  KeptPairs kept_;
  std::thread thread_;
  Mutex mutex_;
  Condition quiet_;
  Listener* listener_ MC_GUARDED_BY(mutex_) = nullptr;
  size_t calling_ MC_GUARDED_BY(mutex_) = 0;
  bool stopped_ MC_GUARDED_BY(mutex_) = false;
  uint64_t last_epoch_ = 0;

  // The listener, marked as being called.
  class Calling;
};

}  // namespace mc::xfer::rdma
