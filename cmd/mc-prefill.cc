// mc-prefill: the prefill worker. The work is in lib/serve.
#include <unistd.h>

#include "base/json.h"
#include "cmd/command.h"
#include "cmd/daemon.h"
#include "http/server.h"
#include "io/signals.h"
#include "serve/dummy_engine.h"
#include "serve/heartbeat.h"
#include "serve/prefill_worker.h"
#include "serve/worker_options.h"

namespace mc::serve {
namespace {

struct PrefillOptions {
  WorkerOptions worker;
  uint32_t chunk_tokens = 1024;
  std::string pool_reuse = "auto";
  Duration pool_timeout = std::chrono::seconds(2);
  xfer::EngineOptions transfer;
  DaemonOptions daemon;
  PrefillOptions() {
    worker.listen = "127.0.0.1:5580";
    worker.http = "127.0.0.1:5581";
  }
  void describe(OptionList& v) {
    worker.describe(v);
    v("chunk-tokens", chunk_tokens, "tokens computed at a time; a multiple of the block size");
    v("pool-reuse", pool_reuse, "fetch KV from the pool where that is predicted faster, or else",
      {"auto", "always", "never"});
    v("pool-timeout", pool_timeout, "how long a call to the pool may take");
    transfer.describe(v);
    daemon.describe(v);
  }
};

Result<PrefillConfig> configure(const PrefillOptions& o, const spec::ModelSpec& spec,
                                uint64_t epoch) {
  PrefillConfig config;
  MC_TRY(config.blocks, o.worker.count_blocks(spec));
  config.epoch = epoch;
  config.chunk_tokens = o.chunk_tokens;
  config.time_scale = o.worker.time_scale;
  config.pool_reuse = o.pool_reuse;
  config.push_timeout = o.transfer.peer_timeout * 3;
  config.store.master = o.worker.master;
  config.store.timeout = o.pool_timeout;
  return config;
}

Heartbeat identity(const PrefillOptions& o, const spec::ModelSpec& spec, const std::string& control,
                   const std::string& http, uint64_t epoch) {
  Heartbeat me;
  me.node = o.worker.name;
  me.role = "prefill";
  me.epoch = epoch;
  me.control = control;
  me.http = http;
  me.model = spec.name;
  me.fingerprint = spec.fingerprint(o.worker.block_size);
  me.block_tokens = o.worker.block_size;
  me.context_max = spec.context_max;
  return me;
}

void answer(const http::Exchange& x, PrefillWorker& worker, const Metrics& metrics, bool draining) {
  worker.update_metrics();
  const std::string state = dump_json(worker.state()) + "\n";
  if (http::serve_common(x, metrics, draining ? "draining" : "", state)) return;
  if (x.request().path == "/state")
    x.reply(200, "application/json", state);
  else
    x.reply(404, "text/plain", "no such page: try /live, /ready, /health, /metrics or /state\n");
}

Result<int> run(PrefillOptions& o) {
  MC_TRY_(o.daemon.load());
  MC_TRY(const spec::ModelSpec spec, spec::load_spec(o.worker.model));
  if (o.worker.name.empty()) o.worker.name = "prefill-" + std::to_string(::getpid());
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  const DummyEngine engine(spec, o.worker.block_size);
  std::unique_ptr<xfer::Engine> transfer;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<PrefillWorker> worker;  // ends before what it uses
  std::unique_ptr<Heartbeats> beats;
  bool draining = false;
  io::Signals signals(loop, [&](int n) {
    if (n > 1 || worker == nullptr) return loop.stop();
    draining = true;
    worker->drain();
    if (beats != nullptr) beats->nudge();
    loop.every(std::chrono::milliseconds(20), [&] {
      if (worker->idle()) loop.stop();
    });
    loop.after(o.worker.drain_timeout, [&loop] { loop.stop(); });
  });
  o.transfer.node = o.worker.name;
  MC_TRY(transfer, xfer::Engine::open(clock, o.transfer, metrics));
  const uint64_t epoch = transfer->generation().n;
  MC_TRY(const PrefillConfig config, configure(o, spec, epoch));
  MC_TRY(server, rpc::Server::open(loop, o.worker.listen, metrics));
  xfer::serve(*transfer, *server);
  MC_TRY(worker, PrefillWorker::open(loop, *transfer, *server, engine, config, metrics));
  MC_TRY(auto pages, http::Server::open(loop, o.worker.http, {}, [&](const http::Exchange& x) {
           answer(x, *worker, metrics, draining);
         }));
  const auto fill = [&](Heartbeat& beat) {
    beat.load = worker->load();
    beat.draining = draining;
  };
  MC_TRY(beats,
         Heartbeats::open(loop, identity(o, spec, server->address(), pages->address(), epoch),
                          o.worker.conductor, o.worker.heartbeat, &worker->cache(), fill, metrics));
  worker->on_news([&beats] { beats->nudge(); });
  MC_TRY_(o.daemon.ready(Endpoints{.name = o.worker.name,
                                   .role = "prefill",
                                   .epoch = epoch,
                                   .control = server->address(),
                                   .http = pages->address(),
                                   .events = "",
                                   .replay = "",
                                   .data = transfer->data_addresses()}));
  MC_TRY_(loop.run());
  o.daemon.stopping();
  const bool cut = !worker->idle();
  worker->on_news({});
  beats.reset();
  pages.reset();
  worker.reset();
  return cut ? 1 : 0;
}

}  // namespace
}  // namespace mc::serve

int main(int argc, char** argv) {
  mc::serve::PrefillOptions options;
  mc::Program program("mc-prefill", "prefill worker: computes the KV of prompts and pushes it on");
  program.options(options);
  program.example("mc-prefill --conductor 127.0.0.1:5560 --master 127.0.0.1:5550",
                  "join a conductor and a KV store on this machine");
  program.exit_status(1, "failed, or a drain cut requests");
  program.run_with([&](mc::Context&) { return mc::serve::run(options); });
  return program.main(argc, argv);
}
