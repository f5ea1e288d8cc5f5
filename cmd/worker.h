// The process around a worker, the same for mc-prefill and mc-decode: model, transfer engine,
// control server, pages, heartbeats to the conductors, and a drain on SIGTERM. A main parses, opens
// the shell, opens its worker on what the shell lends, and runs.
//
//   MC_TRY(auto shell, WorkerShell::open("decode", options));
//   MC_TRY(auto worker, DecodeWorker::open(shell->loop(), shell->transfer(), ...));
//   return shell->run({.load = [&] { return worker->load(); }, ...});
//
// Thread: main's. Errors: kInvalid, kNotFound for options and files; kUnavailable for ports in use.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "cmd/daemon.h"
#include "http/server.h"
#include "io/loop.h"
#include "io/signals.h"
#include "rpc/server.h"
#include "serve/engine.h"
#include "serve/heartbeat.h"
#include "serve/worker_options.h"
#include "xfer/engine.h"

namespace mc {

// Described by the main, which has options of its own among them.
struct WorkerShellOptions {
  serve::WorkerOptions worker;
  xfer::EngineOptions transfer;
  DaemonOptions daemon;
};

// What the shell asks of the worker; only during run().
struct WorkerHooks {
  std::function<serve::WorkerLoad()> load;
  std::function<void()> drain;                 // take nothing new
  std::function<bool()> idle;                  // nothing is under way
  std::function<std::string()> state;          // JSON for /state; brings metrics up to date
  const serve::BlockManager* cache = nullptr;  // what conductors are told of; nullptr: nothing
};

class WorkerShell {
 public:
  static Result<std::unique_ptr<WorkerShell>> open(std::string role, WorkerShellOptions options);
  WorkerShell(const WorkerShell&) = delete;
  WorkerShell& operator=(const WorkerShell&) = delete;

  // Joins the conductors and serves until a signal: the first drains, within --drain-timeout, the
  // second ends at once. Returns the exit status: 1 when work was cut.
  Result<int> run(WorkerHooks hooks);
  // The worker's cache changed: conductors want to know soon.
  void nudge();

  io::Loop& loop() { return loop_; }
  Metrics& metrics() { return metrics_; }
  xfer::Engine& transfer() { return *transfer_; }
  rpc::Server& server() { return *server_; }
  const serve::Engine& engine() const { return *engine_; }
  uint32_t blocks() const { return blocks_; }
  uint64_t epoch() const { return transfer_->generation().n; }

 private:
  WorkerShell(std::string role, WorkerShellOptions options, std::unique_ptr<serve::Engine> engine,
              uint32_t blocks);
  void signal(int n);
  void answer(const http::Exchange& x) const;
  serve::Heartbeat identity(const std::string& http) const;

  const std::string role_;
  const WorkerShellOptions options_;
  const std::unique_ptr<serve::Engine> engine_;
  const uint32_t blocks_;
  SteadyClock clock_;
  io::Loop loop_;
  Metrics metrics_;
  WorkerHooks hooks_;  // set while it runs
  bool running_ = false, draining_ = false;
  io::Signals signals_;
  std::unique_ptr<xfer::Engine> transfer_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<serve::Heartbeats> beats_;
};

}  // namespace mc
