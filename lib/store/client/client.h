// Puts values into the memory of mc-store nodes and reads them back. The transfer engine moves the
// bytes one-sided between the caller's buffers and the nodes.
//
//   MC_TRY(auto client, Client::open(engine, clock, {.master = "127.0.0.1:5550"}, metrics));
//   MC_TRY(PutOutcome o, client->put("k", std::as_bytes(std::span(data))));
//   MC_TRY(uint64_t n, client->get("k", buffer));
//
// A value is written once and immutable until removed. The value of an item is the concatenation of
// its parts, so scattered memory needs no staging copy. A put of a stored key moves no bytes.
//
// A read takes the nearest healthy replica and verifies it. On an error it takes the next replica,
// and reports one that is corrupt. If all replicas were stale it asks the master once more. A read
// over the network that exceeds the 95th percentile is hedged: it also goes to the next replica.
//
// Calls to the master and to nodes, and the transfers ("read", "write"), are steps of the caller's
// trace, below a step "get" or "put" (base/step_trace.h).
//
// Errors: kNotFound; kBusy (another client is writing the key); kNoSpace (the pool is full of
// leased objects, the value is larger than the pool, or the caller's buffer is too small);
// kUnavailable (the master or all holders are gone, or the master is rebuilding; the client retries
// while there is time); kTimeout; kCorrupt (checksum); kStale (the object was replaced during the
// read or write). Every call ends within its `timeout`; a put that got no answer, within a tenth
// more (500 ms at most), in which it is given back.
// Thread: any. Concurrent calls wait for each other's metadata round trips; AsyncClient keeps
// several in flight.
// Source: Mooncake paper, section 3.2 (KVCache store); design, "Client library".
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/options.h"
#include "base/random.h"
#include "base/result.h"
#include "base/time.h"
#include "rpc/client.h"
#include "store/client/hedge_timer.h"
#include "store/client/local_hot_cache.h"
#include "store/client/unheard_puts.h"
#include "store/client/unreached_nodes.h"
#include "store/client/verified_reads.h"
#include "store/protocol/messages.h"
#include "store/protocol/query_messages.h"
#include "xfer/engine.h"

namespace mc::store {

struct Loaded;

struct PutConfig {  // how the pool keeps the value; docs/store.md
  std::string cls = "normal";
  std::string pin = "none";
  Duration ttl{};  // of a context, or of the pin; 0: unlimited
  std::string group;
  std::string host;  // this machine's --host, as its nodes have it
  bool prefer_local = false;
  void describe(OptionList& v);
  bool operator==(const PutConfig&) const = default;
};

struct ClientOptions {
  std::string master = "127.0.0.1:5550";
  Duration timeout = std::chrono::seconds(5);          // of one call, batch or not
  Duration put_wait = std::chrono::milliseconds(100);  // how long a put waits for a full pool
  // Same-host reads: always | sample (the first of each replica, then 1 of 64) | never.
  std::string verify = "sample";
  uint32_t replicas = 1;
  std::string prefer;        // node to put on if it has space
  Bytes local_hot_cache{0};  // for values read from other hosts or disks; 0: off
  bool hedge = true;         // hedge late reads
  // Called about 5 times a second while bytes move, on the calling thread.
  std::function<void(uint64_t done, uint64_t total)> progress{};
  std::string tenant{};
  PutConfig put{};
  // Nonces of puts, which no other client may have too; called on any thread.
  std::function<uint64_t()> random = fresh_seed;
  void describe(OptionList& v);  // all but put and random
};

// kNotAdmitted: the pool does not keep objects of its class; no bytes moved.
enum class PutOutcome : uint8_t { kStored, kExisted, kNotAdmitted };

struct PutItem {
  ObjectKey key;
  std::vector<std::span<const std::byte>> parts;
};
struct PutAs {  // replaces the client's own options
  std::string tenant;
  PutConfig config;
  bool promote = false;   // a copy on a disk does not refuse it: for the SSD tier
  uint32_t replicas = 0;  // 0: as the client's options; so is an empty `prefer`
  std::string prefer{};
  Time until = Time::max();  // if before the end of the call's timeout
  // Outlives the call, may be null. Once true, bytes stop moving and what is open is kUnavailable.
  const std::atomic<bool>* stopped = nullptr;
  bool ends() const { return stopped != nullptr && stopped->load(); }
  bool operator==(const PutAs&) const = default;
};
struct CallLimits {    // of one call, replaces the client's own options
  Duration timeout{};  // 0: the options'
  std::function<void(uint64_t done, uint64_t total)> progress{};
  // Outlives the call, may be null. Once true, bytes stop moving and what is open is kUnavailable.
  const std::atomic<bool>* stopped = nullptr;
  bool ends() const { return stopped != nullptr && stopped->load(); }
  Duration timeout_or(Duration own) const { return timeout > Duration::zero() ? timeout : own; }
};
struct ValueRange {  // bytes of a value, and where they go
  uint64_t offset = 0;
  std::span<std::byte> into;
};
struct GetItem {
  ObjectKey key;
  std::vector<std::span<std::byte>> parts;  // together at least as large as the value
  // If not empty, only these are read, and nothing into `parts`. They cannot be checked against the
  // checksum, which is of the whole value; the guard words are compared as ever.
  std::vector<ValueRange> ranges{};
  // The last of several such reads: now `parts` have the whole value, which is compared with the
  // checksum. kCorrupt: what some of the reads gave was not what was put.
  bool completes = false;
  uint64_t wanted(uint64_t bytes) const;  // of a value of that size
};

class Client {
 public:
  CallLimits limits;  // of the calls that follow. Requires: it changes while none is under way

  // Connects lazily: an unreachable master is an error of the first call.
  static Result<std::unique_ptr<Client>> open(xfer::Engine& engine, const Clock& clock,
                                              ClientOptions options, Metrics& metrics);

  // Another client of the same master, for parallel calls. They share a near cache, what they know
  // of masters, and the puts that are to be given back.
  Result<std::unique_ptr<Client>> another(Metrics& metrics) const;

  Result<PutOutcome> put(const ObjectKey& key, std::span<const std::byte> value);
  // Returns: the value's size; its bytes are at the front of `into`.
  Result<uint64_t> get(const ObjectKey& key, std::span<std::byte> into);
  Result<std::vector<std::byte>> get(const ObjectKey& key);
  // One result per item, in order; items fail separately.
  std::vector<Result<PutOutcome>> put_batch(std::span<const PutItem> items);
  std::vector<Result<PutOutcome>> put_batch(std::span<const PutItem> items, const PutAs& as);
  // Also waits up to `wait` for keys that are not stored yet. Sets in `verified` whose checksum was
  // compared in this call.
  std::vector<Result<uint64_t>> get_batch(std::span<const GetItem> items, Duration wait = {},
                                          std::vector<bool>* verified = nullptr);

  Result<std::vector<bool>> exists(const std::vector<ObjectKey>& keys);
  // Returns: the number of stored keys before the first gap; leases them.
  // places: if given, where each of these keys is.
  Result<uint64_t> match_prefix(const std::vector<ObjectKey>& keys,
                                std::vector<StoredPlace>* places = nullptr);
  // The same of blocks, counted when stored under every prefix: the keys are prefix + the block's
  // hash in lower-case hex. `hashes` has `hash_bytes` of each. `within`: 0: the options' timeout.
  Result<uint64_t> match_blocks(const std::vector<std::string>& prefixes,
                                std::span<const uint8_t> hashes, size_t hash_bytes,
                                Duration within = {});
  // `tenant`: whose they are, if not the options' tenant's.
  std::vector<Result<>> remove(const std::vector<ObjectKey>& keys, bool force = false,
                               const std::string* tenant = nullptr);
  Result<Listed> list(const std::string& prefix, const std::string& after, uint32_t limit);
  Result<ClusterStat> stat(Duration within = {});  // 0: the call's timeout
  // A hint that the keys will be read soon: objects that only a disk holds are promoted. Returns:
  // how many.
  Result<uint64_t> prefetch(const std::vector<ObjectKey>& keys);
  // Size, checksum and replica locations of a value; leases it. `nodes`: those of the locations.
  Result<Located> locate(const ObjectKey& key, std::vector<NodeRef>* nodes = nullptr);
  // Sends an administrative message (store/protocol/messages.h) to the master, without retries.
  template <class M>
  Result<typename M::Reply> call(const M& message) {
    find_leader();
    return master_->call(message, limits.timeout_or(options_.timeout));
  }

 private:
  using Opened = std::map<std::string, Result<xfer::SegmentHandle>>;  // by control address
  struct Read;
  struct Write;
  struct Late;
  struct Holders {  // of values: by control address
    Mutex mutex;
    std::map<std::string, std::unique_ptr<rpc::SyncClient>> clients MC_GUARDED_BY(mutex);
    std::map<std::string, xfer::SegmentHandle> segments MC_GUARDED_BY(mutex);
  };
  struct Shared {                              // with those made by another()
    std::unique_ptr<LocalHotCache> hot_cache;  // null: none
    UnheardPuts unheard;
    UnreachedNodes unreached;
    std::atomic<uint64_t> epoch{0};  // the largest seen; clients refuse older masters
  };
  Client(xfer::Engine& engine, const Clock& clock, ClientOptions options, Metrics& metrics,
         std::unique_ptr<rpc::SyncClient> master, std::shared_ptr<Shared> shared);
  template <class M>
  Result<typename M::Reply> ask(const M& message, Time deadline, Duration wait = {});
  Result<> check_epoch(uint64_t epoch);
  void find_leader();  // for calls without retries
  std::vector<Result<>> remove_some(const std::vector<ObjectKey>& keys, bool force,
                                    const std::string& tenant, Time deadline);
  Duration left(Time deadline) const { return deadline - clock_.now(); }

  void put_round(std::span<Write> writes, const PutAs& as, bool again, Time deadline);
  Result<xfer::SegmentHandle> segment_of(const NodeRef& node, Opened& opened, Time deadline);
  Result<> prepare(Write& write, const std::vector<NodeRef>& nodes, Opened& opened, Time deadline);
  void write_out(std::span<Write> writes, const PutAs& as,
                 const std::vector<xfer::Request>& requests, const std::vector<NodeRef>& nodes,
                 Time deadline);
  void finish_puts(std::span<Write> writes, const std::string& tenant, Time deadline);
  void get_rounds(std::span<Read> reads, Time deadline, Duration wait);
  void get_round(std::span<Read> reads, Time deadline, Duration wait);
  void read_replicas(std::span<Read> reads, size_t replica, const Replicas& found, Duration share,
                     Time deadline);
  void read_batch(std::span<Read* const> reading, std::span<const xfer::Request> requests,
                  size_t replica, const Replicas& found, Opened& opened, Duration share,
                  Time deadline);
  Result<> moved_of(Read& read, xfer::BatchId batch) const;
  void complete(Read& read, const Result<>& moved, const NodeRef& node, bool verify, bool far);
  void order_places(Replicas& found);
  double distance(const NodeRef& node, uint64_t bytes);
  bool far(xfer::SegmentHandle segment) const;  // not memory of this host
  void read_hot(std::span<Read> reads);
  void keep_hot(const Read& read);
  std::vector<Late> overdue_reads(std::span<Read* const> reading, xfer::BatchId batch,
                                  size_t replica, const Replicas& found, Opened& opened,
                                  Time deadline);
  void hedge(std::span<Read* const> reading, xfer::BatchId batch, size_t replica,
             const Replicas& found, Opened& opened, Time deadline);
  void check_early(std::span<Read* const> reading, xfer::BatchId batch, Time deadline);
  void adopt_hedge_result(Late& late, xfer::BatchId batch, xfer::BatchId other);
  Result<rpc::SyncClient*> holder(const std::string& control);
  void read_disks(std::span<Read> reads, const Replicas& found, Time deadline);
  void load(std::span<Read* const> some, const NodeRef& node, Opened& opened, Time deadline);
  void fetch(std::span<Read* const> some, const Loaded& loaded, xfer::SegmentHandle segment,
             const NodeRef& node, Time deadline);
  void wait_moved(xfer::BatchId batch, size_t requests, uint64_t total,
                  const std::vector<ObjectKey>& leased, Duration lease, Time deadline,
                  const std::atomic<bool>* stopped = nullptr);
  bool verifies(const Read& read);
  void report(const NodeRef& node);
  void report_corrupt(const Read& read, const ReplicaLocation& place, const NodeRef& node);

  xfer::Engine& engine_;
  const Clock& clock_;
  const ClientOptions options_;
  const std::unique_ptr<rpc::SyncClient> master_;
  const bool several_;  // masters
  Holders holders_;
  const std::shared_ptr<Shared> shared_;
  HedgeTimer times_;                // of reads from other hosts
  std::atomic<bool> heard_{false};  // from a master of that epoch
  VerifiedReads verified_;
  Counter &put_bytes_, &get_bytes_, &hits_, &misses_, &corrupt_, &stale_, &hot_hits_, &hedged_,
      &hedges_won_;
  Gauge& hot_bytes_;
};

}  // namespace mc::store
