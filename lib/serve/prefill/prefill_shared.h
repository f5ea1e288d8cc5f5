// What the objects of a prefill worker share: its settings, requests, counters and blocks.
// The worker owns it, and ends before none of them.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "rpc/client.h"
#include "serve/connector/kv_pool.h"
#include "serve/connector/kv_sender.h"
#include "serve/connector/kv_shape.h"
#include "serve/connector/kv_transfer.h"
#include "serve/prefill/prefill_job.h"
#include "serve/runtime/trace_events.h"
#include "serve/runtime/worker_core.h"
#include "telemetry/tracer.h"
#include "xfer/engine.h"

namespace mc::serve {

struct PrefillConfig {
  uint64_t epoch = 0;  // of its heartbeats: larger than an earlier process's
  uint32_t blocks = 0;
  uint32_t chunk_tokens = 1024;
  std::string order = "fcfs";  // of the queue: sched::kPrefillOrders
  double ageing = 0.1;         // of srpf
  double time_scale = 1;
  std::string pool_reuse = "auto";  // auto: if fetching is predicted faster; always; never
  // Computing begins with the first layers of a prefix from the pool; else when all are here.
  bool pool_layers = false;
  Connector connector = Connector::kMulti;
  bool layerwise = true;                             // false: sends all when all is computed
  Duration send_timeout = std::chrono::seconds(10);  // of a layer, or of all at the end
  Duration peer_budget = std::chrono::seconds(5);    // KvReady, KvFailed
  store::ClientOptions store;                        // master empty: no pool
  OpenPool pool = open_store_pool;
  TraceEvents* trace = nullptr;         // outlives the worker; nullptr: no trace
  telemetry::Tracer* tracer = nullptr;  // outlives the worker; nullptr: no spans
  // For the head of a pipeline, whose engine has the first slice of the layers: control addresses
  // of the other stages in order (empty: no pipeline), the whole model's fingerprint, and how long
  // a stage may be silent.
  std::vector<std::string> stages;
  std::string fingerprint;
  Duration pipeline_patience = std::chrono::seconds(3);
};

struct PrefillCounters {
  explicit PrefillCounters(Metrics& metrics);
  Counter &prompts, &prompt_tokens, &queries, &hits, &pool_tokens, &failed, &aborted, &computed;
  Counter &peer_tokens, &peer_failures, &pinned_blocks, &pins_expired, &hints;
  BucketHistogram &queue, &load, &prefill, &transfer;
  Gauge &running, &waiting, &usage;
  Gauge &free, &cached, &used;  // blocks
};

// What these objects ask of the worker.
class PrefillHost {
 public:
  // Ends the request when nothing of it is busy; the first cause counts.
  virtual void fail_job(const PrefillJobPtr& job, Error why) = 0;
  virtual void settle(const PrefillJobPtr& job) = 0;  // of a failed one: less of it is busy now
  virtual void end_committed(const PrefillJobPtr& job) = 0;  // delivered after its commit
  virtual void resume() = 0;                                 // more may be computed now
  virtual void state_changed() = 0;
  virtual rpc::Client* peer(const std::string& address) = 0;  // nullptr: there is none

 protected:
  ~PrefillHost() = default;
};

// The decode instance of the same process. It keeps a request's blocks as they are.
struct OwnDecode {
  using Adopt = std::function<Result<>(const std::string& request, uint64_t guard,
                                       const std::vector<BlockId>& blocks)>;
  std::string control;  // of this process
  Adopt adopt;          // empty: there is none
  // True if it decodes the request: it reserved no blocks, and decodes from this worker's.
  bool is(const Reservation& target) const {
    return adopt != nullptr && target.control == control && target.block_offsets.empty();
  }
};

struct PrefillShared {
  PrefillShared(io::Loop& on, xfer::Engine& transfers, const Engine& model,
                const PrefillConfig& settings, Metrics& metrics, std::shared_ptr<WorkerCore> blocks,
                PrefillHost& worker);
  BlockManager& blocks() const { return core->blocks(); }
  uint64_t block_bytes() const { return core->block_bytes(); }
  bool pipeline() const { return !config.stages.empty(); }  // this is the head of one
  void place_blocks(PrefillJob& job) const;  // where the blocks of its transaction are
  void trace(const char* track, const std::string& name, const PrefillJob& job, Time begin,
             Time end) const;

  io::Loop& loop;
  xfer::Engine& xfer;
  const Engine& engine;
  const PrefillConfig config;
  const std::shared_ptr<WorkerCore> core;
  const KvShape shape;
  PrefillCounters counters;
  PrefillJobs jobs;
  OwnDecode own_decode;
  PrefillHost& host;
  KvTransfer transfer;  // last: users of blocks are destroyed before the blocks
};

}  // namespace mc::serve
