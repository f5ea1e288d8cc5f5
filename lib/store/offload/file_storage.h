// The SSD tier of a node: offloads objects to its disk and serves them. It writes what the master
// orders, loads objects into staging memory for readers, and promotes objects back into memory when
// they are read.
//
// Jobs come in the answers to heartbeats, which the master holds until there are jobs. Objects
// gather until a bucket is full, the oldest has waited for --ssd-flush, or the master says that
// puts wait for their memory. Then eviction makes space in two phases, with a report to the master
// in between, and the objects are written and reported.
// Every read is verified; damaged objects are reported and dropped. While the disk is full or
// read-only the node reports that, and the master offloads nothing to it.
//
// Thread: the loop's. One executor writes, kReaders read; they end before this does.
// Source: ssd-offload-design, all of it; design, "SSD tier".
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/options.h"
#include "io/loop.h"
#include "rpc/client.h"
#include "rpc/server.h"
#include "store/node/node.h"
#include "store/offload/folder_clock.h"
#include "store/protocol/tier_messages.h"
#include "store/ssd/backend.h"
#include "store/ssd/serial_executor.h"
#include "store/ssd/staging.h"
#include "xfer/engine.h"

namespace mc::store {

struct TierOptions {
  std::string folder;  // empty: no tier
  Bytes size{0};       // of the disk to use
  std::string backend = "bucket", evict = "lru";
  Bytes bucket{256 * kMiB};
  uint32_t bucket_keys = 500;
  Duration flush = std::chrono::seconds(1);
  Bytes staging{64 * kMiB};
  Duration lease = std::chrono::seconds(5);
  bool uring = true;
  void describe(OptionList& v);
  Result<ssd::BackendOptions> backend_options() const;
};

struct PreparedTier {  // what takes minutes to get
  std::string masters;
  ssd::BackendOptions options;
  xfer::Memory memory;  // guard words, then staging
  std::unique_ptr<ssd::Backend> backend;
  ssd::ScanReport scan;
  std::optional<FolderClock> clock;
};
// Scans the disk. Any thread: see Opening. Errors: those of ssd::open_backend(); kInvalid; kNoSpace
// (no staging memory); kUnavailable (no masters).
Result<PreparedTier> prepare_tier(xfer::Engine& engine, const NodeOptions& master,
                                  const TierOptions& options, const Clock& clock,
                                  HostClock host = host_times);

class FileStorage {
 public:
  // Requires: `node` outlives the object. `prepared`: if empty, it is prepared now. Errors: those
  // of prepare_tier().
  static Result<std::unique_ptr<FileStorage>> open(io::Loop& loop, xfer::Engine& engine,
                                                   const StoreNode& node, const NodeOptions& master,
                                                   const TierOptions& options, Metrics& metrics,
                                                   PreparedTier prepared = {});
  ~FileStorage();
  FileStorage(const FileStorage&) = delete;
  FileStorage& operator=(const FileStorage&) = delete;

  void serve(rpc::Server& server);  // load-objects and release-slots
  // Puts a loaded object into the pool's memory. Its bytes stay valid until `done` runs, on the
  // loop's thread, with true if it was put and false if it was there already. Without a Promote
  // nothing is promoted, and a drain cannot empty the disk.
  using Promoted = std::function<void(const Result<bool>&)>;
  using Promote =
      std::function<void(const ssd::Stored& object, std::span<const std::byte>, Promoted done)>;
  // `hits`: promote every object that is read, not only those that a drain moves.
  void on_promote(Promote promote, bool hits) {
    promote_ = std::move(promote);
    promote_hits_ = hits;
  }

  // Takes no more jobs, writes the gathered ones, reports them to the master, then calls back; at
  // the latest after kFlushMax.
  void flush(std::function<void()> done);
  static constexpr Duration kFlushMax = std::chrono::seconds(10);

  ssd::Usage usage() const { return backend_->usage(); }
  const ssd::ScanReport& scan() const { return scan_; }
  bool mounted() const { return mounted_; }
  const KeepClock& keep_clock() const { return clock_.seconds(); }  // of what lies there
  size_t gathered() const { return gathering_.size(); }             // jobs to write
  const std::string& trouble() const { return trouble_; }
  static constexpr size_t kReaders = 2;

 private:
  struct Offload {
    TierJob job;
    Time due;  // when it is written even if it is alone
  };
  struct Batch;    // one write
  struct Loading;  // a pending load-objects
  struct Parked {
    LoadObjects message;
    rpc::Call call;
    rpc::Reply<Loaded> reply;
  };
  FileStorage(io::Loop& loop, const StoreNode& node, const NodeOptions& master,
              const TierOptions& options, Metrics& metrics, PreparedTier prepared,
              std::unique_ptr<rpc::Client> client);

  // ---- the master
  void mount();
  void send_page(size_t from);
  void beat();
  void take(const TierWork& work);
  void retry(const Error& error);
  void report();
  void tell(TierResult result, std::function<void()> acknowledged = {});
  void arm();
  void end_flush();

  // ---- writing
  Result<> check_job(const TierJob& job) const;
  void cut();
  void prepare(const std::shared_ptr<Batch>& batch);  // this and the next two run on the writer
  void make_room(const std::shared_ptr<Batch>& batch);
  void write(const std::shared_ptr<Batch>& batch);
  void evicted(const std::shared_ptr<Batch>& batch);
  void written(const std::shared_ptr<Batch>& batch);
  void give_up(const TierObject& object);
  void forget(std::vector<ssd::Stored> objects, bool damaged);
  bool guards_hold(const TierJob& job) const;

  // ---- reading
  void load(const LoadObjects& m, const rpc::Call& call, const rpc::Reply<Loaded>& reply);
  bool start_load(const std::shared_ptr<Loading>& loading);
  void start_bring();
  void tell_brought(const std::string& name, const Result<>& outcome);
  void loaded(const std::shared_ptr<Loading>& loading);
  void promote(const std::shared_ptr<Loading>& loading);
  void raise(const std::vector<ssd::StagingSlot>& slots);
  void retry_loads();
  uint64_t guard_of(uint64_t at) const { return memory_.offset() + at / kPage * 8; }
  uint64_t data_of(uint64_t at) const { return memory_.offset() + guards_ + at; }
  std::byte* bytes_of(uint64_t at) const { return memory_.data() + guards_ + at; }

  io::Loop& loop_;
  const StoreNode& node_;
  const NodeOptions master_options_;
  const TierOptions options_;
  const xfer::Memory memory_;  // guard words, then staging
  const uint64_t guards_;
  std::unique_ptr<rpc::Client> master_;
  const ssd::BackendOptions backend_options_;
  const ssd::ScanReport scan_;
  FolderClock clock_;
  const std::unique_ptr<ssd::Backend> backend_;
  ssd::Staging staging_;
  Promote promote_;
  bool promote_hits_ = false;
  uint64_t promoting_ = 0;  // bytes

  bool mounted_ = false, reporting_ = false, beating_ = false;
  uint64_t mounts_ = 0, taken_ = 0;  // of this listing: replies to earlier ones are void; last job
  std::vector<ssd::Stored> inventory_;
  std::string last_error_, trouble_;
  Time trouble_until_{}, retry_at_ = Time::max();
  struct PendingReport {
    TierResult result;
    std::function<void()> acknowledged;
  };
  std::deque<PendingReport> results_;
  std::deque<Offload> gathering_;
  uint64_t gathering_bytes_ = 0;
  bool writing_ = false;
  struct Removals {
    std::vector<ssd::Stored> later;   // they may be in the current write
    std::vector<ssd::Stored> failed;  // tried again after again_at
    Time again_at{};
  };
  Removals removals_;
  std::deque<Parked> parked_;
  std::deque<TierObject> bringing_;  // moves that wait for staging memory
  std::function<void()> flushed_;    // set while it flushes
  io::Loop::Handle flush_timer_ = 0;
  size_t next_reader_ = 0;
  io::Loop::Handle timer_ = 0;
  Counter &stored_, &stored_bytes_, &refused_, &evicted_, &damaged_, &loads_, &load_bytes_,
      &promoted_;
  Gauge &used_, &objects_;

  std::unique_ptr<ssd::CompletionQueue> mail_;
  std::unique_ptr<ssd::SerialExecutor> writer_;  // last: the executors use all other members
  std::vector<std::unique_ptr<ssd::SerialExecutor>> readers_;
};

}  // namespace mc::store
