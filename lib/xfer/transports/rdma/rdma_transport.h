// The requester's side of rdma. Private to rdma/*.cc. Each peer has one queue pair a rail (a local
// and a remote NIC), made on demand. The submitting thread posts what the rails take and polls
// once for completions; the NICs' threads do the rest. RailQueue decides which rail takes what,
// hedges and retries.
//
// Thread: any; its own work runs on the control thread of Host and on the NICs' threads.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/transport.h"
#include "xfer/rails/endpoint_pool.h"
#include "xfer/rails/rail_queue.h"
#include "xfer/transports/rdma/connection.h"
#include "xfer/transports/rdma/host.h"

namespace mc::xfer::rdma {

class PeerConnections;
using PeerConnectionsPtr = std::shared_ptr<PeerConnections>;

// What completions brought, to be told once no lock is held.
struct Outbox {
  struct Ended {
    PeerConnectionsPtr connections;
    AttemptPtr attempt;
    Result<> outcome;
  };
  struct Broken {
    PeerConnectionsPtr connections;
    RailIndex rail;
    uint32_t connection;
  };
  struct Pinged {
    PeerConnectionsPtr connections;
    RailIndex rail;
    Duration took;
  };
  std::vector<Ended> ended;
  std::vector<Broken> broken;
  std::vector<Pinged> pinged;
  std::vector<std::pair<PeerConnectionsPtr, RailIndex>> touched;
  std::vector<Connection::Done> done;  // of one completion: room that is used again
};

class RdmaTransport final : public Transport, private Host::Listener {
 public:
  RdmaTransport(Sink& sink, std::shared_ptr<Host> host, Metrics& metrics);
  ~RdmaTransport() override { stop(); }
  Result<> start();
  const char* name() const override { return "rdma"; }
  bool reaches(const Peer& peer, uint64_t offset, Op op) const override;
  bool takes(const Buffer& device) const override { return host_->regions().takes(device); }
  void describe(const PeerPtr& peer, uint64_t bytes, Path& path) const override;
  void submit(SlicePtr slice) override;
  void flush() override;
  InlineResult try_inline(const Request& request, const PeerPtr& peer, const MemoryLocation& memory,
                          const Begin& begin) override;
  void forget(const PeerPtr& peer) override;
  void stop() override;

  // ---- for PeerConnections
  Host& host() { return *host_; }
  EndpointPool& pool() { return pool_; }
  const Clock& clock() const { return host_->clock(); }
  // Completions that name `connection` belong to that rail of the peer, until forgotten.
  uint32_t next_connection() { return connections_.fetch_add(1) + 1; }
  void expect(Nic& nic, uint32_t connection, const PeerConnectionsPtr& connections, RailIndex rail);
  void forget_connection(Nic& nic, uint32_t connection);
  bool drain(Nic& nic, bool wait) override MC_TSA(no_thread_safety_analysis);
  // Completions go to their connections, with the NIC's poll lock held, and room in the queue to
  // those who wait for it; tell() is for afterwards.
  void sort(Nic& nic, Device& device, std::span<const ibv_wc> completions, Outbox& out);
  void tell(Outbox& out);
  void made_connection(bool good);
  void release_claimed();  // endpoints that inline transfers keep until the next tick
  void held(PeerConnectionsPtr connections);  // until flush()
  // Looks for completions for a while: cheaper than to be woken. The caller attends to the NICs.
  static void await(const Task& task, PeerConnections& connections);

 private:
  struct Owner {
    std::weak_ptr<PeerConnections> connections;
    RailIndex rail = 0;
  };
  Result<PeerConnectionsPtr> connections(const PeerPtr& peer);
  std::vector<PeerConnectionsPtr> all_connections() const;
  void finish(const std::vector<PeerConnectionsPtr>& gone);
  void keep_time();
  void tick();
  void port_changed(Nic& nic, bool up) override;
  void lost(Nic& nic, const char* why) override;
  void back(Nic& nic) override;

  Sink& sink_;
  const std::shared_ptr<Host> host_;
  EndpointPool pool_;
  std::vector<std::unordered_map<uint32_t, Owner>> owners_;  // by NIC; of its poll lock
  std::atomic<uint32_t> connections_{0};
  mutable Mutex mutex_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::map<const Peer*, PeerConnectionsPtr> by_peer_ MC_GUARDED_BY(mutex_);
  std::vector<PeerConnectionsPtr> held_ MC_GUARDED_BY(mutex_);
  std::atomic<bool> holds_{false};
  std::atomic<bool> ticking_{false};
  Time busy_{};                 // of the control thread
  io::Loop::Handle timer_ = 0;  // of the control thread
  Counter &made_, &failed_;
  Gauge &endpoints_, &evicted_;
};

}  // namespace mc::xfer::rdma
