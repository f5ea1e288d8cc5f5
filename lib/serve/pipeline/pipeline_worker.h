// A pipeline stage after the head: computes its layers and passes activations on.
// It computes its slice of the layers for each chunk, passes the activations to the next stage, and
// sends the KV of its layers to the decode worker layer by layer, as the head does. The head
// decides everything: which blocks are reused, which are free, and when a request ends
// (serve/protocol/pipeline_messages.h).
//
// Chunks are computed in the order in which they come, one layer after the other. Meanwhile the
// head and the other stages compute the chunks after and before it.
//
// Thread: the loop's; KV is computed on a thread of its own.
// Source: Mooncake paper section 5.1 (chunked pipeline parallelism).
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/metrics.h"
#include "rpc/server.h"
#include "serve/connector/kv_sender.h"
#include "serve/connector/store_connector.h"
#include "serve/pipeline/pipeline_link.h"
#include "serve/protocol/pipeline_messages.h"
#include "serve/runtime/trace_events.h"
#include "serve/runtime/worker_core.h"

namespace mc::serve {

struct PipelineConfig {
  std::string fingerprint;  // of the whole model
  uint32_t stage = 0;       // from 0, the head
  uint32_t blocks = 0;      // as many as in the head
  double time_scale = 1;
  Connector connector = Connector::kMulti;
  bool layerwise = true;
  Duration send_timeout = std::chrono::seconds(10);
  Duration patience = std::chrono::seconds(3);  // with a next stage that does not answer
  Duration work = std::chrono::minutes(10);     // with a chunk
  store::ClientOptions store;                   // master empty: no pool
  TraceEvents* trace = nullptr;                 // outlives the worker; nullptr: no trace
};

class PipelineWorker {
 public:
  // Registers its messages with `server`. `engine` has the stage's layers (cost::slice_of).
  // Errors: kInvalid for the pool connector without a pool; kNoSpace for blocks that do not fit.
  static Result<std::unique_ptr<PipelineWorker>> open(io::Loop& loop, xfer::Engine& transfer,
                                                      rpc::Server& server, const Engine& engine,
                                                      const PipelineConfig& config,
                                                      Metrics& metrics);
  ~PipelineWorker();
  PipelineWorker(const PipelineWorker&) = delete;
  PipelineWorker& operator=(const PipelineWorker&) = delete;

  bool idle() const { return busy_ == 0; }  // nothing reads or writes its blocks
  void drain() { draining_ = true; }        // refuses a new pipeline
  Json state() const;

 private:
  struct Job {
    KvRoute kv;
    std::vector<int32_t> prompt;
    std::vector<BlockHash> parents;
    uint64_t next = 0;       // the token the next chunk begins with
    uint64_t reused = 0;     // tokens
    bool reachable = false;  // its decode worker
  };
  using JobPtr = std::shared_ptr<Job>;
  struct Beginning {
    uint64_t pipeline = 0;  // 0: none has begun
    uint64_t head = 0, number = 0;
  };
  struct Work {  // a PipelineBegin or a PipelineChunk, until it is done
    JobPtr job;
    rpc::Reply<PipelineDone> reply;
    bool last = false;
    uint32_t parts = 1;           // computing, sending, the next stage
    std::optional<Error> broken;  // the pipeline is lost
    PipelineDone done;
    Time computed{};  // by this and the stages after it
  };
  using WorkPtr = std::shared_ptr<Work>;

  PipelineWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server, const Engine& engine,
                 const PipelineConfig& config, Metrics& metrics, std::shared_ptr<WorkerCore> core);
  Result<> hold_blocks();
  template <class M>
  void on(void (PipelineWorker::*handler)(const M&, const rpc::Reply<typename M::Reply>&));
  void open_pipeline(const PipelineOpen& m, const rpc::Reply<PipelineOpened>& reply);
  Result<> check(const PipelineOpen& m) const;
  void ping(const PipelinePing& m, const rpc::Reply<rpc::Empty>& reply);
  void fetch(const PipelineFetch& m, const rpc::Reply<PipelineFetched>& reply);
  void put(const PipelinePut& m, const rpc::Reply<rpc::Empty>& reply);
  void begin(const PipelineBegin& m, const rpc::Reply<PipelineDone>& reply);
  Result<JobPtr> make_job(const PipelineBegin& m);
  void chunk(const PipelineChunk& m, const rpc::Reply<PipelineDone>& reply);
  Result<JobPtr> check(const PipelineChunk& m) const;
  void end(const PipelineEnd& m, const rpc::Reply<rpc::Empty>& reply);
  bool known(const std::vector<uint32_t>& blocks) const;

  void compute(const WorkPtr& work, uint64_t begin, uint64_t end, Activations activations);
  void layer_done(const WorkPtr& work, uint64_t begin, uint64_t end, uint32_t layer);
  void send(const WorkPtr& work, size_t first, size_t last, uint64_t at, uint64_t bytes);
  template <class M>
  void pass_on(const WorkPtr& work, const M& message);
  void part_done(const WorkPtr& work);
  rpc::Client* peer(const std::string& address);
  void after(Time when, std::function<void()> task);

  io::Loop& loop_;
  const Engine& engine_;
  const PipelineConfig config_;
  const Timing timing_;
  const std::shared_ptr<WorkerCore> core_;
  rpc::Server& server_;
  Beginning last_;  // what stage-open said last
  bool draining_ = false;
  uint32_t busy_ = 0;  // uses of blocks here
  std::map<std::string, JobPtr> jobs_;
  std::deque<std::function<void()>> late_;  // layers that wait for their modelled time, in order
  std::map<std::string, std::unique_ptr<rpc::Client>> peers_;
  Counter &computed_, &crossed_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers check it
  std::unique_ptr<PipelineLink> next_;                          // nullptr: this is the last one
  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<StoreConnector> pool_;
  KvTransfer transfer_;
};

// The chunk messages that carry `rows` ([token][hidden]) of tokens [begin, end): as few as hold
// them, cut at blocks.
std::vector<PipelineChunk> pipeline_chunks(const std::string& request, uint64_t begin, uint64_t end,
                                           bool last, std::span<const float> rows,
                                           uint32_t block_tokens);

}  // namespace mc::serve
