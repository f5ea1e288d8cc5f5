// The transfer engine moves bytes between local memory and the segments of other processes.
// The application says which bytes go where. The engine chooses the transport (same process, shared
// memory, file, rdma, tcp), cuts requests into slices, and retries a failed slice on the next
// transport.
//
//   MC_TRY(auto engine, Engine::open(clock, {.node = "n1"}, metrics));
//   MC_TRY(Memory pool, engine->allocate(1 * kGiB));        // offered to peers
//   serve(*engine, rpc_server);                             // answers describe-segment
//   MC_TRY(SegmentHandle seg, engine->open_segment("127.0.0.1:5600", 1s));
//   MC_TRY_(engine->transfer_sync({.op = Op::kRead, .local = p, .segment = seg, .bytes = n}, 5s));
//
// Thread: every member may be called from any thread; callbacks run on an engine thread and must
// not block (post to your loop). Errors: kStale when the peer's generation or a guard moved on;
// kUnavailable when the peer is gone; kTimeout; kInvalid for ranges outside the segment.
// Source: Mooncake paper 3.2.2, Listing 1; TENT paper section 3.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/options.h"
#include "base/result.h"
#include "base/time.h"
#include "xfer/core/fence.h"
#include "xfer/core/messages.h"
#include "xfer/core/path.h"
#include "xfer/core/policies.h"
#include "xfer/core/request.h"
#include "xfer/memory/memory_kind.h"
#include "xfer/memory/memory_source.h"

namespace mc::rpc {
class Server;
}

namespace mc::xfer {

struct EngineOptions {
  NodeId node = "anonymous";
  std::vector<std::string> data{"127.0.0.1:0"};  // listen addresses of tcp data connections
  std::vector<std::string> nics{};               // interfaces for tcp, devices for rdma; empty: all
  std::vector<std::string> transports{"shm", "file", "tcp"};  // allowed, in order of preference
  uint32_t file_depth = 32;                                   // file operations in flight
  bool file_uring = true;      // else pread and pwrite, one at a time
  uint32_t workers = 2;        // copy threads
  uint32_t connections = 2;    // tcp connections per rail and peer
  uint32_t endpoints = 256;    // tcp connections, and queue pairs, kept open to all peers
  int gid_index = -1;          // of rdma; -1: the best one
  uint32_t traffic_class = 0;  // of rdma
  uint32_t rdma_mtu = 0;       // bytes; 0: the port's
  std::string rdma_control;    // listens for connections of rdma; "": host of data, a free port
  uint32_t rdma_pkey = 0;      // partition key; 0: the port's first
  uint32_t rdma_service_level = 0, rdma_flow_label = 0;
  Bytes slice{1 * kMiB};  // bytes per slice, at least 64 KiB
  Duration peer_timeout =
      std::chrono::seconds(3);              // a request fails when its peer is silent this long
  uint32_t max_failover_attempts = 3;       // transports tried after the first
  Bytes staging_chunk{512 * kKiB};          // bytes of a staging buffer
  uint32_t staging_buffers = 8;             // chunks in flight
  std::string class_weights = "16:4:1";     // high, medium and low on a busy link
  std::string share_table = "/dev/shm";     // folder of ShmUsageTable and copies_file(); "": none
  std::string sysfs = "/sys";               // tree with the NUMA nodes and devices
  std::string fault;                        // fault script (xfer/transports/fault/fault_plan.h)
  Scheduler scheduler = Scheduler::kSpray;  // others: for comparison
  Eviction eviction = Eviction::kSieve;     // of queue pairs; kFifo: for comparison
  bool addresses = false;                   // tells peers where its buffers lie in this process
  void describe(OptionList& v);             // all but node, staging and these three
};

// Owns memory, or a file, of this process that peers may reach. When the last copy of this object
// goes, the memory is freed (or unregistered), after the requests of peers that still touch it.
class Memory {
 public:
  struct Impl;
  Memory() = default;
  explicit Memory(std::shared_ptr<Impl> impl);
  std::span<std::byte> bytes() const { return bytes_; }  // empty for a file
  std::byte* data() const { return bytes_.data(); }
  size_t size() const { return size_; }
  uint64_t offset() const { return offset_; }  // of bytes()[0] in this process's segment
  explicit operator bool() const { return impl_ != nullptr; }

 private:
  std::shared_ptr<Impl> impl_;
  std::span<std::byte> bytes_;
  size_t size_ = 0;
  uint64_t offset_ = 0;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const Clock& clock, EngineOptions options,
                                              Metrics& metrics);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- memory that is offered
  // Allocates zero-filled shared memory up front (a full machine is kNoSpace, never SIGBUS). Peers
  // of the same uid map it. When `location` names a known device ("cuda:0"), it allocates memory of
  // that device instead, and does not fill it. Peers of this host copy to and from device memory
  // themselves. One may still be writing, so the device gets it back only when the engine closes.
  Result<Memory> allocate(uint64_t bytes, bool writable = true, std::string location = "*");
  // Allocates from another source. kInvalid: there is no such NUMA node. A file keeps its contents.
  Result<Memory> allocate_from(MemorySource source, uint64_t bytes);
  // Registers memory of the application. Requires: it outlives the returned Memory. With "*" its
  // address decides whether it is host memory or a known device's. kInvalid: not all of it is
  // memory of the device that `location` names.
  Result<Memory> register_memory(std::span<std::byte> memory, bool writable = true,
                                 std::string location = "*");
  // Adds the memory of a device whose locations begin with `name` ("cuda" for "cuda:1"). The host
  // never touches memory that is registered there afterwards. The device copies it, directly or
  // through staging (xfer/staging/staging_engine.h), for requests of this process and of its peers.
  // Host memory that the engine allocates afterwards is pinned.
  // kInvalid: `name` is a name of host memory, or was added before.
  Result<> add_memory_kind(const std::string& name, std::shared_ptr<MemoryKind> kind);
  // Registers the first `bytes` of a file or block device (0: all of it). Transfers of this process
  // and of peers read and write it at its offset in the segment. `writable` creates or lengthens it
  // and allocates its space (kNoSpace); otherwise it must be long enough (kInvalid). A request on
  // it cannot have a guard. The file stays when the Memory goes.
  Result<Memory> register_file(const std::string& path, uint64_t bytes, bool writable = true);
  SegmentDescriptor describe() const;  // what peers receive
  Generation generation() const;
  const std::vector<std::string>& data_addresses() const;

  // ---- peers
  // Fetches the descriptor from the owner's control address ("host:port"); blocks up to `budget`.
  // The engine caches it by address, and fetches it once more when the generation changes.
  // `expected`: the generation it must have; kStale when another process answers there now.
  Result<SegmentHandle> open_segment(const std::string& control_address, Duration budget,
                                     Generation expected = {});
  // Opens a descriptor that the caller fetched (loops must not block). Without `control_address`
  // the caller refreshes a stale segment by calling this again: a newer generation of the same node
  // replaces the old one under the same handle.
  Result<SegmentHandle> open_segment(const SegmentDescriptor& descriptor,
                                     const std::string& control_address = {});
  void close_segment(SegmentHandle segment);  // requests in flight fail as kUnavailable
  SegmentHandle self() const;                 // this process's own segment
  // Returns: the end of the segment's last buffer. kNotFound when it is not open.
  Result<uint64_t> segment_bytes(SegmentHandle segment) const;
  // Returns: the offset in the segment of a range that its owner has at this address. Fetches the
  // descriptor once more if it knows none there; blocks up to a second then. Errors: kNotFound;
  // kInvalid: the range ends outside the buffer; kUnsupported: the owner does not tell addresses.
  Result<uint64_t> segment_offset(SegmentHandle segment, uint64_t address, uint64_t bytes);
  // Returns: the transports in order of preference, for `bytes` at `offset`, from or into `local`
  // (null: any memory). Errors: kNotFound, kInvalid.
  Result<std::vector<Path>> paths(SegmentHandle segment, uint64_t offset, Op op, uint64_t bytes,
                                  const void* local = nullptr) const;
  std::string transport_of(SegmentHandle segment) const;  // the first: "self", "shm", "device"

  // ---- transfers
  BatchId allocate_batch();
  // Adds requests. `all_done` (optional) runs once, when every request submitted to the batch so
  // far has finished. It never runs inside submit(), and may run shortly after wait() returned.
  // Requests move in any order, several at once: where two overlap, the bytes of either may stay.
  // Errors (then nothing was submitted): kInvalid, kNotFound.
  Result<> submit(BatchId batch, std::span<const Request> requests,
                  std::function<void()> all_done = {});
  // Also sends `after` to each peer of these requests, once all their bytes have arrived. Each
  // delivery is one more transfer of the batch, behind the requests, in the order of the peers'
  // first requests. It fails when a request failed. Requires segments opened by control address
  // (kInvalid). kBusy: the peer does not take its notifications.
  Result<> submit(BatchId batch, std::span<const Request> requests, const Notification& after,
                  std::function<void()> all_done = {});
  // As submit(), by a caller that waits for the batch next: this thread moves short requests itself
  // where the transport permits it, because waking another costs more than they do. It takes a few
  // milliseconds at most, and no longer than `budget`; what has not ended then goes on by itself.
  Result<> submit_awaited(BatchId batch, std::span<const Request> requests, Duration budget);
  Status status(BatchId batch, size_t index) const;
  BatchSummary summary(BatchId batch) const;  // of no requests if it is not there
  // Blocks until the whole batch finished or `budget` passed (kTimeout; the batch continues).
  // Errors: otherwise the first error of the batch.
  Result<> wait(BatchId batch, Duration budget);
  // After it returns, no transport reads or writes local memory of the batch.
  void cancel(BatchId batch);
  void free_batch(BatchId batch);  // cancels what has not finished

  // It ends early, as kUnavailable, within 20 ms after `*stopped` is true.
  Result<> transfer_sync(const Request& request, Duration budget,
                         const std::atomic<bool>* stopped = nullptr);
  // Sets the guard word at `offset` to `value` if it holds less (generations only grow). kStale
  // when it holds more. Atomic: the owner does it, or this process in shared memory.
  Result<> advance_guard(SegmentHandle segment, uint64_t offset, uint64_t value, Duration budget);
  // The same of several, which leave together; each gets its outcome.
  struct GuardAdvance {
    SegmentHandle segment = 0;
    uint64_t offset = 0, value = 0;
    Result<> outcome{};
  };
  void advance_guards(std::span<GuardAdvance> guards, Duration budget);
  // Ends what peers still write into ranges of this process's segment that get another owner.
  // Requires: the guard words that earlier writes named were raised before, in this process. It
  // never waits: call it again, later, with the ranges that are not done. Once a range is done, no
  // byte of a write under an earlier guard is applied there. For that, connections with a frame
  // under way into it are closed; all queue pairs are, if it is `unfinished`; and a process that
  // copies into it by itself is waited for: one that stands still keeps that range from being done
  // until it goes on or ends. Peers connect again by themselves. Returns: all are done.
  bool fence(std::span<FencedRange> ranges);

  // ---- notifications
  // Sends a notification without data. Transfers that completed before arrive before it.
  Result<> notify(SegmentHandle segment, const Notification& notification, Duration budget);
  // Receives notifications of peers (Requires: serve()). A handler gets each, those that wait
  // first. Without one they wait for take_notifications().
  void on_notification(std::function<void(const Notification&)> handler);
  std::vector<Notification> take_notifications(size_t max = SIZE_MAX);
  // Returns: an eventfd, to poll only, that is readable while some wait to be taken.
  Result<int> notifications_fd();

 private:
  friend void serve(Engine& engine, rpc::Server& server);
  friend class PreparedTransfers;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Makes `server` answer describe-segment and notify for this engine.
void serve(Engine& engine, rpc::Server& server);

}  // namespace mc::xfer
