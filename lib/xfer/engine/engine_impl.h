// Private state of `Engine`: open segments, batches, and the completion of slices. Only engine*.cc
// includes it.
//
// Thread: a mutex guards the members, and another one each batch. Neither is held across a call
// into a transport, a callback, or the network. Blocking work (dropping a peer's connections) runs
// on the background thread.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "xfer/core/awaited.h"
#include "xfer/core/merge.h"
#include "xfer/core/notify.h"
#include "xfer/core/numa.h"
#include "xfer/core/task.h"
#include "xfer/engine.h"
#include "xfer/engine/descriptor_refresher.h"
#include "xfer/memory/file_stream.h"
#include "xfer/memory/registry.h"
#include "xfer/qos/nic_inflight.h"
#include "xfer/rails/nics.h"
#include "xfer/staging/staging_engine.h"
#include "xfer/transports/file/file_transport.h"
#include "xfer/transports/rdma/open.h"
#include "xfer/transports/shm/fd_server.h"
#include "xfer/transports/shm/shm_transport.h"
#include "xfer/transports/tcp/server.h"
#include "xfer/transports/tcp/tcp_transport.h"

namespace mc::xfer {

struct Memory::Impl {
  BufferPtr buffer;
  std::weak_ptr<Registry> registry;
  ~Impl() {
    if (auto r = registry.lock()) r->remove(buffer);
  }
};

struct Engine::Impl final : Sink {
  Impl(const Clock& c, EngineOptions o, Metrics& m);
  ~Impl() override;
  Result<> start();
  bool allowed(const char* transport) const;
  Result<> start_transports();
  Result<std::unique_ptr<Transport>> make_transport(const std::string& name, Sink& sink);
  Result<> serve_tcp();  // listens on the data addresses
  Result<std::unique_ptr<Transport>> open_rdma(Sink& sink);
  void split_nics();
  bool left_out(const std::string& transport, const Error& why) const;
  // Returns: the location of host memory; {} with one NUMA node, or if the kernel does not say.
  MemoryLocation host_location(const void* memory) const {
    return {several_nodes && memory != nullptr ? numa_node_of(memory) : -1, -1};
  }

  // ---- peers (engine_peers.cc)
  struct Open {
    PeerPtr peer;  // null once closed
    std::string control;
    Time silent_until{};     // it did not answer: no new fetch before this
    bool forgotten = false;  // its process ended, and transports keep nothing of it
    bool newer_than(const Peer& other, bool fetched) const;
  };
  SegmentDescriptor describe() const;
  Result<PeerPtr> make_peer(SegmentDescriptor descriptor, const std::string& control = {}) const;
  Result<SegmentHandle> open(const SegmentDescriptor& descriptor, const std::string& control);
  Result<SegmentHandle> open_by_address(const std::string& control, Duration budget,
                                        Generation expected);
  Result<SegmentDescriptor> fetch(const std::string& control, Duration budget) const;
  void close(SegmentHandle segment);
  Result<PeerPtr> peer_of(SegmentHandle segment) MC_REQUIRES(mutex);
  void retire(PeerPtr peer, PeerState state) MC_REQUIRES(mutex);
  bool refresh(SlicePtr& slice, const Error& why);
  DescriptorRefresher::Hooks refresher_hooks();
  // Returns: the first transport that reaches the peer and was not tried; null: none is left.
  Transport* next_transport(Slice& slice) const;

  // ---- transfers (engine_submit.cc; what applications call: engine_api.cc)
  struct Work {
    MergedRequest merged;
    PeerPtr peer;
  };
  Result<const BufferInfo*> buffer_at(const Peer& peer, const Request& request) MC_REQUIRES(mutex);
  Result<PeerPtr> peer_for(const Request& request) MC_REQUIRES(mutex);
  struct Admitted {
    std::vector<Work> work;
    std::vector<uint32_t> order;  // as in MergeResult
  };
  Result<Admitted> admit(std::span<const Request> requests);
  struct Submission {
    const Notification* after = nullptr;
    std::function<void()> all_done{};
    Duration awaited_for{};       // how long the submitting thread may move slices; 0: it does not
    Time deadline = Time::max();  // of all requests, beside their own
  };
  // `admitted`: what admit() made of the requests.
  Result<> submit(const std::shared_ptr<Batch>& batch, std::span<const Request> requests,
                  const Admitted& admitted, Submission how);
  bool try_cached_copy(const Request& request, Duration budget);
  bool try_inline_copy(const Request& request, const PeerPtr& peer, Time now,
                       uint64_t together = 0);
  std::optional<Result<>> try_inline(const Request& request, const PeerPtr& peer, Duration budget,
                                     const std::atomic<bool>* stopped);
  SlicePtr slice_of(const TaskPtr& task, const Request& request, const PeerPtr& peer,
                    const Piece& piece) const;
  void launch(const TaskPtr& task, const Request& request, const PeerPtr& peer,
              uint64_t batch_bytes, bool more = false, AwaitedSlices* awaited = nullptr);
  void flush();
  // Submits it to its next transport, with `awaited` if there is one, or completes it.
  void dispatch(SlicePtr slice, AwaitedSlices* awaited = nullptr);
  void finished(SlicePtr slice, Result<> outcome) override;
  void complete(SlicePtr slice, Result<> outcome);
  static Result<> of_one_process(const Slice& slice);
  static Time after(Duration budget, Time now);
  bool ending() const;
  bool ended(const TaskPtr& task, uint64_t at, uint64_t bytes, std::optional<uint64_t> digest,
             const Result<>& outcome);
  void run_or_defer(std::vector<std::function<void()>> callbacks);
  Result<> wait(Batch& batch, Duration budget, const std::atomic<bool>* stopped = nullptr);
  Result<> outcome_of(Batch& batch, Duration budget, const std::atomic<bool>* stopped = nullptr);
  void cancel(Batch& batch);
  std::shared_ptr<Batch> find(BatchId id) const;
  void defer(std::function<void()> job) MC_REQUIRES(mutex);
  void run_deferred();

  // ---- memory of devices (engine_devices.cc)
  Result<BufferPtr> allocate(uint64_t bytes, bool writable, std::string location);
  Result<BufferPtr> add_buffer(std::span<std::byte> memory, bool writable, std::string location);
  Result<> add_kind(const std::string& name, MemoryKindPtr kind);
  MemoryKindPtr kind_of(const std::string& location) const;
  // Buffers at the ends of a request that only the device can copy; none: transports reach both
  // ends.
  struct Ends {
    BufferPtr local, remote;
    bool owned = false;  // `remote` belongs to a peer, which transports reach too
    bool taken = false;  // a transport reaches `local` without a copy
  };
  Result<Ends> ends_of(const Request& request, const PeerPtr& peer);
  BufferPtr shared_by(const PeerPtr& peer, const BufferInfo& info);
  std::string offer_of(MemoryKind& kind, std::span<std::byte> memory) const;
  MemoryLocation device_location(const MemoryKind& kind, const std::string& location) const;
  MemoryLocation location_of(const std::byte* local) const;  // of device or host memory
  bool taken(const Peer& peer, const Request& request, const Buffer& local) const;

  // ---- notifications (engine_notify.cc)
  Result<std::vector<SegmentHandle>> notification_targets(const Notification& n,
                                                          std::span<const Request> requests);
  void send_notification(const TaskPtr& send, const CompletionNotification& notice);
  Result<> receive(const Notify& message);

  struct Counters {
    Counter *bytes, *slices, *requests, *failures, *carried;
  };
  Counters counters_of(const std::string& transport);
  const Counters& counters_of(const Slice& slice) const;
  Counter& failovers(uint32_t from, uint32_t to) const;

  const Clock& clock;
  const EngineOptions options;
  Metrics& metrics;
  bool several_nodes = false;
  std::string secret;  // of this process's data connections
  std::string host, net;
  std::shared_ptr<Registry> registry;
  std::shared_ptr<FileStreamPool> file_streams;  // of files that tcp serves
  std::unique_ptr<FdServer> fd_server;
  std::unique_ptr<tcp::Server> tcp_server;
  std::shared_ptr<rdma::Offer> rdma_offer;             // null: none
  std::vector<std::string> data;                       // advertised
  std::vector<NicInfo> data_nics;                      // of `data`
  std::vector<Nic> nics;                               // of this machine, allowed by the options
  std::vector<std::string> tcp_nics, rdma_nics;        // of options.nics
  std::unique_ptr<NicInflight> nic_inflight;           // of the NICs' bytes in flight
  std::vector<std::unique_ptr<Transport>> transports;  // in order of preference
  LocalTransport* host_copies = nullptr;               // transports[0], if it copies host memory
  std::vector<Counters> counts;                        // as transports
  Counters self_counts{};

  mutable Mutex mutex;
  Condition changed;                                // a deferred job, or stopping
  std::vector<Open> segments MC_GUARDED_BY(mutex);  // by handle; [0] is this process
  uint64_t self_version MC_GUARDED_BY(mutex) = 0;   // of the registry, when [0] was made
  std::map<NodeId, SegmentHandle> by_node MC_GUARDED_BY(mutex);
  std::map<std::string, SegmentHandle> by_address MC_GUARDED_BY(mutex);
  std::deque<std::function<void()>> deferred MC_GUARDED_BY(mutex);
  bool stopping MC_GUARDED_BY(mutex) = false;
  std::thread background_thread;
  Inbox inbox;
  Notifier notifier;
  mutable Mutex kinds_mutex;
  std::map<std::string, MemoryKindPtr> kinds MC_GUARDED_BY(kinds_mutex);  // by name
  std::atomic<bool> knows_kinds{false};
  std::vector<device::Memory> shared_out MC_GUARDED_BY(kinds_mutex);  // peers may still write to it
  // Device memory of peers, opened in this process; null: opening failed.
  struct Shared {
    std::weak_ptr<const Peer> peer;
    BufferPtr buffer;
  };
  std::map<std::pair<const Peer*, uint64_t>, Shared> shared MC_GUARDED_BY(kinds_mutex);
  StagingEngine staging;
  DescriptorRefresher refresher;
  mutable Mutex batches_mutex;
  BatchId next_batch MC_GUARDED_BY(batches_mutex) = 1;
  std::unordered_map<BatchId, std::shared_ptr<Batch>> batches MC_GUARDED_BY(batches_mutex);
};

}  // namespace mc::xfer
