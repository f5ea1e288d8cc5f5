// The transfer engine: moves bytes between local memory and the segments of other processes.
// The application says what should be where; the engine chooses the transport (same process,
// shared memory, tcp), cuts requests into slices, and retries on the next transport.
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
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/options.h"
#include "base/result.h"
#include "base/time.h"
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
  std::vector<std::string> data{"127.0.0.1:0"};  // where tcp data connections are taken
  std::vector<std::string> nics{};               // interfaces for tcp, devices for rdma; empty: all
  std::vector<std::string> transports{"shm", "file", "tcp"};  // allowed, in order of preference
  uint32_t file_depth = 32;                                   // file reads and writes under way
  bool file_uring = true;      // else pread and pwrite, one at a time
  uint32_t workers = 2;        // copy threads
  uint32_t connections = 2;    // tcp connections a rail to each peer
  uint32_t endpoints = 256;    // tcp connections, and queue pairs, kept, to all peers
  int gid_index = -1;          // of rdma; -1: the best one
  uint32_t traffic_class = 0;  // of rdma
  uint32_t rdma_mtu = 0;       // bytes; 0: the port's
  Bytes slice{1 * kMiB};       // bytes a slice, at least 64 KiB
  Duration peer_timeout = std::chrono::seconds(3);  // a silent peer fails a request after this
  uint32_t max_failover_attempts = 3;               // transports tried after the first
  Bytes staging_chunk{512 * kKiB};                  // of the copies to and from device memory
  uint32_t staging_buffers = 8;                     // chunks in flight at a time
  std::string class_weights = "16:4:1";             // of high, medium and low on a busy link
  std::string share_table = "/dev/shm";             // folder of ShmUsageTable; "": none
  std::string sysfs = "/sys";                       // tells NUMA nodes and devices
  std::string fault;                        // a drill's script (xfer/transports/fault/fault_plan.h)
  Scheduler scheduler = Scheduler::kSpray;  // others: for comparison
  Eviction eviction = Eviction::kSieve;     // of queue pairs; the other: likewise
  void describe(OptionList& v);             // all but node, staging and these two
};

// Memory, or a file, of this process that peers may reach. Freed (or unregistered) when the last
// copy goes; requests of peers still touching it end first.
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
  // Engine-owned shared memory, allocated up front (a full machine is kNoSpace, never SIGBUS);
  // peers of the same uid map it. Zero-filled; where `location` is a known kind's ("cuda:0"),
  // memory of that device, not filled, which peers of this host reach by copies of their own: it
  // goes back to the device with the engine, not before, since one of them may still be writing.
  Result<Memory> allocate(uint64_t bytes, bool writable = true, std::string location = "*");
  // The same from elsewhere; kInvalid: a NUMA node that is not there. What a file holds stays.
  Result<Memory> allocate_from(MemorySource source, uint64_t bytes);
  // Memory the application brought; it must outlive the returned Memory. "*": host memory, or a
  // device's of a known kind, as its address tells. kInvalid: not all of it is memory of the device
  // that `location` names.
  Result<Memory> register_memory(std::span<std::byte> memory, bool writable = true,
                                 std::string location = "*");
  // How memory is reached whose locations begin with `name` ("cuda" for "cuda:1"). Memory
  // registered there afterwards is never touched by the host: its transfers are copies of the kind,
  // straight or staged (xfer/staging/staging_engine.h), here for requests of this process, whose
  // local side may lie in it, and by this process for its peers. kInvalid: a name that host memory
  // has, or that is known already.
  Result<> add_memory_kind(const std::string& name, std::shared_ptr<MemoryKind> kind);
  // The first `bytes` of a file or block device (0: all of it), addressable like memory: transfers
  // of this process and of peers read and write it at its offset in the segment. Created, or
  // lengthened with all its space, when `writable` (kNoSpace); else it must be as long (kInvalid).
  // A request on it cannot have a guard. The file stays when the Memory goes.
  Result<Memory> register_file(const std::string& path, uint64_t bytes, bool writable = true);
  SegmentDescriptor describe() const;  // what peers are told
  Generation generation() const;
  const std::vector<std::string>& data_addresses() const;

  // ---- peers
  // Asks the owner at its control address ("host:port"); blocks up to `budget`. Cached by address;
  // refreshed once by the engine itself when its generation moves.
  // `expected`: the generation it must have; kStale when another process answers there by now.
  Result<SegmentHandle> open_segment(const std::string& control_address, Duration budget,
                                     Generation expected = {});
  // For callers that fetched the descriptor themselves (loops must not block). `control_address`
  // may be empty; then a stale segment is the caller's to refresh by calling this again: a newer
  // generation of the same node replaces the old under the same handle.
  Result<SegmentHandle> open_segment(const SegmentDescriptor& descriptor,
                                     const std::string& control_address = {});
  void close_segment(SegmentHandle segment);  // its requests in flight fail as kUnavailable
  SegmentHandle self() const;                 // this process's own segment
  // The end of a segment's last buffer, as its descriptor tells. kNotFound when it is not open.
  Result<uint64_t> segment_bytes(SegmentHandle segment) const;
  // The transports in order of preference, for `bytes` at `offset`, from or into `local` (null:
  // some memory). kNotFound, kInvalid.
  Result<std::vector<Path>> paths(SegmentHandle segment, uint64_t offset, Op op, uint64_t bytes,
                                  const void* local = nullptr) const;
  std::string transport_of(SegmentHandle segment) const;  // the first: "self", "shm", "device"

  // ---- transfers
  BatchId allocate_batch();
  // Adds requests; `all_done` (optional) runs once, when every request submitted to the batch so
  // far has finished: never inside submit(), perhaps a moment after wait() returned. Requests are
  // moved in any order, and several at once: where two overlap, either's bytes may stay. Errors
  // (nothing was submitted): kInvalid, kNotFound.
  Result<> submit(BatchId batch, std::span<const Request> requests,
                  std::function<void()> all_done = {});
  // The same, and when all bytes of these requests are there, and only then, each peer that they
  // went to is told `after`. Its delivery is one more transfer of the batch for each such peer, in
  // the order of their first request, behind the requests; it fails when one of those did. Needs
  // segments opened by control address (kInvalid). kBusy: the peer does not take its notifications.
  Result<> submit(BatchId batch, std::span<const Request> requests, const Notification& after,
                  std::function<void()> all_done = {});
  Status status(BatchId batch, size_t index) const;
  // Blocks until all of the batch finished or `budget` passed (kTimeout; the batch goes on).
  // Otherwise the first error of the batch, if any.
  Result<> wait(BatchId batch, Duration budget);
  // When it returns, no byte of local memory will be read or written any more.
  void cancel(BatchId batch);
  void free_batch(BatchId batch);  // cancels what has not finished

  Result<> transfer_sync(const Request& request, Duration budget);
  // Sets the guard word at `offset` to `value` if it holds less (generations only grow). kStale
  // when it holds more. Executed atomically against other raises, by the owner or in shared memory.
  Result<> advance_guard(SegmentHandle segment, uint64_t offset, uint64_t value, Duration budget);

  // ---- notifications
  // Without data. What was sent to a peer earlier, and has completed, is there before it.
  Result<> notify(SegmentHandle segment, const Notification& notification, Duration budget);
  // What peers told this process (serve() must answer for it): hands each to `handler`, those that
  // wait already first; or keeps them to be taken.
  void on_notification(std::function<void(const Notification&)> handler);
  std::vector<Notification> take_notifications(size_t max = SIZE_MAX);

 private:
  friend void serve(Engine& engine, rpc::Server& server);
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Makes `server` answer describe-segment and notify for this engine.
void serve(Engine& engine, rpc::Server& server);

}  // namespace mc::xfer
