// The program of a worker: mc-prefill and mc-decode, which differ in their first role.
// Around serve::RoleManager it has the model, the transfer engine, the control server, the HTTP
// pages, the heartbeats to the conductors, and the drain on SIGTERM.
//
// Errors: kInvalid, kNotFound for options and files; kUnavailable for ports in use.
// Thread: main's.
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
#include "telemetry/tracer.h"
#include "xfer/engine.h"

namespace mc {

struct WorkerProgram {
  std::string role;  // "prefill", "decode", "both", "auto"
  serve::WorkerOptions worker;
  uint32_t chunk_tokens = 1024;
  std::string prefill_order = "fcfs";
  double ageing = 0.1;
  std::string pool_reuse = "auto", connector = "multi", layerwise = "on", lookup, trace_events;
  std::string pool_load = "whole";
  std::string cache_answers = "on";
  std::string preempt = "auto";
  double watermark = 0.01;
  uint32_t speculate = 0;
  Bytes swap_memory{uint64_t{1} << 30};
  std::string stage;  // "I/N": this process is stage I of a pipeline; empty: of none
  std::vector<std::string> cpp_group;  // for the head: the other stages' control addresses
  Duration pool_timeout = std::chrono::seconds(2), pool_put_wait = std::chrono::milliseconds(100);
  Duration tbt_slo{}, kv_deadline{}, recompute_after{};
  Duration conductor_timeout = std::chrono::seconds(60);
  std::string calibrate;  // file for the engine's times; empty: serve
  uint64_t calibrate_tokens = 2048;
  telemetry::OtlpOptions otlp;
  xfer::EngineOptions transfer;
  DaemonOptions daemon;
  serve::OpenPool pool = serve::open_store_pool;  // of prompts

  // The defaults of the role and the addresses.
  WorkerProgram(std::string role_, std::string listen, std::string http);
  void describe(OptionList& v);
  Result<serve::PrefillConfig> prefill(uint32_t blocks) const;
  serve::DecodeConfig decode(uint32_t blocks) const;
  serve::PipelineConfig pipeline_config(const serve::PrefillConfig& prefill, uint32_t number) const;
  Result<serve::Slicing> slicing() const;
  Result<> check() const;  // options that no worker can run with
};

class WorkerShell {
 public:
  static Result<std::unique_ptr<WorkerShell>> open(WorkerProgram options);
  WorkerShell(const WorkerShell&) = delete;
  WorkerShell& operator=(const WorkerShell&) = delete;

  // Joins the conductors and serves until a signal. The first signal drains, within
  // --drain-timeout; the second ends at once. Returns the exit status: 1 if it cut work.
  Result<int> run();

 private:
  explicit WorkerShell(WorkerProgram options);
  Result<> open_work(uint32_t blocks);
  Result<> open_roles(serve::PrefillConfig prefill, uint32_t blocks);
  bool idle() const {
    return pipeline_worker_ != nullptr ? pipeline_worker_->idle() : roles_->idle();
  }
  std::string state() const;
  Result<> join();  // the conductors, in the present role
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
  io::Signals signals_;                        // before any thread starts: none may take signals
  std::unique_ptr<telemetry::Tracer> tracer_;  // null: no --otlp
  std::unique_ptr<serve::Engine> engine_;
  std::unique_ptr<serve::DeviceKvMetrics> device_kv_;  // null: the engine has no device
  std::unique_ptr<xfer::Engine> transfer_;
  std::unique_ptr<rpc::Server> server_;
  cost::ModelSpec whole_;                      // the model; the engine may have a slice of it
  std::unique_ptr<serve::RoleManager> roles_;  // null: a stage after the head, which is:
  std::unique_ptr<serve::PipelineWorker> pipeline_worker_;
  std::unique_ptr<serve::LookupBridge> bridge_;
  std::vector<std::unique_ptr<serve::Heartbeats>> beats_;  // one for each instance
};

// Measures the engine instead of serving. Writes the model's spec with the fitted times.
Result<int> calibrate_engine(const WorkerProgram& options);

// The whole of main().
int worker_main(int argc, char** argv, const char* program, const char* does,
                WorkerProgram options);

}  // namespace mc
