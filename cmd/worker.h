// The program of a worker: mc-prefill and mc-decode are this, with another role to begin with.
// Model, transfer engine, control server, pages, heartbeats to the conductors, and a drain on
// SIGTERM, around serve::RoleManager.
//
// Thread: main's. Errors: kInvalid, kNotFound for options and files; kUnavailable for ports in use.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "cmd/daemon.h"
#include "http/server.h"
#include "io/loop.h"
#include "io/signals.h"
#include "rpc/server.h"
#include "serve/engine/device_kv_metrics.h"
#include "serve/pipeline/pipeline_worker.h"
#include "serve/runtime/heartbeat.h"
#include "serve/runtime/worker_options.h"
#include "serve/worker/lookup_bridge.h"
#include "serve/worker/role_manager.h"
#include "xfer/engine.h"

namespace mc {

struct WorkerProgram {
  std::string role;  // "prefill", "decode", "both", "auto"
  serve::WorkerOptions worker;
  uint32_t chunk_tokens = 1024;
  std::string prefill_order = "fcfs";
  double ageing = 0.1;
  std::string pool_reuse = "auto", connector = "multi", layerwise = "on", lookup, trace_events;
  std::string stage;  // "I/N": this process is stage I of a pipeline; empty: of none
  std::vector<std::string> cpp_group;  // of its head: the other stages' control addresses
  Duration pool_timeout = std::chrono::seconds(2);
  Duration tbt_slo{}, kv_deadline = std::chrono::seconds(60), recompute_after{};
  std::string calibrate;  // file for the times of the engine; empty: be a worker
  uint64_t calibrate_tokens = 2048;
  xfer::EngineOptions transfer;
  DaemonOptions daemon;
  serve::OpenPool pool = serve::open_store_pool;  // of prompts

  // Of that role, at those addresses, unless told otherwise.
  WorkerProgram(std::string role_, std::string listen, std::string http);
  void describe(OptionList& v);
  Result<serve::PrefillConfig> prefill(uint32_t blocks) const;
  serve::DecodeConfig decode(uint32_t blocks) const;
  serve::PipelineConfig pipeline_config(const serve::PrefillConfig& prefill, uint32_t number) const;
  Result<serve::Slicing> slicing() const;
  Result<> check() const;  // what no worker can run with
};

class WorkerShell {
 public:
  static Result<std::unique_ptr<WorkerShell>> open(WorkerProgram options);
  WorkerShell(const WorkerShell&) = delete;
  WorkerShell& operator=(const WorkerShell&) = delete;

  // Joins the conductors and serves until a signal: the first drains, within --drain-timeout, the
  // second ends at once. Returns the exit status: 1 when work was cut.
  Result<int> run();

 private:
  explicit WorkerShell(WorkerProgram options);
  Result<> open_work(uint32_t blocks);
  Result<> open_roles(serve::PrefillConfig prefill, uint32_t blocks);
  bool idle() const {
    return pipeline_worker_ != nullptr ? pipeline_worker_->idle() : roles_->idle();
  }
  std::string state() const;
  Result<> join();  // the conductors, as what it is now
  void signal(int n);
  void answer(const http::Exchange& x) const;
  void nudge();
  serve::Heartbeat identity(const serve::RoleInstance& instance) const;

  const WorkerProgram options_;
  SteadyClock clock_;
  io::Loop loop_;
  Metrics metrics_;
  bool running_ = false, draining_ = false;
  std::string http_;
  serve::TraceEvents trace_;
  io::Signals signals_;  // before anything that has threads: they are not to take signals
  std::unique_ptr<serve::Engine> engine_;
  std::unique_ptr<serve::DeviceKvMetrics> device_kv_;  // null: the engine has no device
  std::unique_ptr<xfer::Engine> transfer_;
  std::unique_ptr<rpc::Server> server_;
  cost::ModelSpec whole_;                      // of the model, of which the engine may have a slice
  std::unique_ptr<serve::RoleManager> roles_;  // or, of a pipeline's stage that is not its head:
  std::unique_ptr<serve::PipelineWorker> pipeline_worker_;
  std::unique_ptr<serve::LookupBridge> bridge_;
  std::vector<std::unique_ptr<serve::Heartbeats>> beats_;  // one for each instance
};

// Measures the engine instead of serving, and writes the model's spec with the fitted times.
Result<int> calibrate_engine(const WorkerProgram& options);

// The whole of main().
int worker_main(int argc, char** argv, const char* program, const char* does,
                WorkerProgram options);

}  // namespace mc
