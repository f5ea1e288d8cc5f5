// mc-decode: the decode worker. The work is in lib/serve.
#include <unistd.h>

#include "base/json.h"
#include "cmd/command.h"
#include "cmd/daemon.h"
#include "http/server.h"
#include "io/signals.h"
#include "serve/decode_worker.h"
#include "serve/dummy_engine.h"
#include "serve/heartbeat.h"
#include "serve/worker_options.h"

namespace mc::serve {
namespace {

struct DecodeOptionsAll {
  WorkerOptions worker;
  Duration tbt_slo{};
  Duration kv_deadline = std::chrono::seconds(60);
  xfer::EngineOptions transfer;
  DaemonOptions daemon;
  DecodeOptionsAll() {
    worker.listen = "127.0.0.1:5590";
    worker.http = "127.0.0.1:5591";
  }
  void describe(OptionList& v) {
    worker.describe(v);
    v("tbt-slo", tbt_slo, "a request joins the batch while a step stays within this; 0: always");
    v("kv-deadline", kv_deadline, "KV that has not come by then fails its request");
    transfer.describe(v);
    daemon.describe(v);
  }
};

std::string state_of(const DecodeWorker& worker) {
  const WorkerLoad l = worker.load();
  return dump_json({{"waiting", l.waiting},
                    {"running", l.running},
                    {"blocks_total", l.blocks_total},
                    {"blocks_free", l.blocks_free},
                    {"tbt_ms", l.tbt_ms}}) +
         "\n";
}

Heartbeat identity(const DecodeOptionsAll& o, const spec::ModelSpec& spec,
                   const rpc::Server& server, const http::Server& pages, uint64_t epoch) {
  Heartbeat me;
  me.node = o.worker.name;
  me.role = "decode";
  me.epoch = epoch;
  me.control = server.address();
  me.http = pages.address();
  me.model = spec.name;
  me.fingerprint = spec.fingerprint(o.worker.block_size);
  me.block_tokens = o.worker.block_size;
  me.context_max = spec.context_max;
  return me;
}

Result<int> run(DecodeOptionsAll& o) {
  MC_TRY_(o.daemon.load());
  MC_TRY(const spec::ModelSpec spec, spec::load_spec(o.worker.model));
  DecodeConfig config;
  MC_TRY(config.blocks, o.worker.count_blocks(spec));
  config.time_scale = o.worker.time_scale;
  config.tbt_slo = o.tbt_slo;
  config.kv_deadline = o.kv_deadline;
  config.peer_timeout = o.transfer.peer_timeout;
  if (o.worker.name.empty()) o.worker.name = "decode-" + std::to_string(::getpid());
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  std::unique_ptr<DecodeWorker> worker;
  std::unique_ptr<Heartbeats> beats;
  bool draining = false;
  auto stop_when_idle = [&] {
    if (draining && (worker == nullptr || worker->idle())) loop.stop();
  };
  io::Signals signals(loop, [&](int n) {
    if (n > 1 || worker == nullptr) return loop.stop();
    draining = true;
    worker->drain();
    if (beats != nullptr) beats->nudge();
    loop.every(std::chrono::milliseconds(20), stop_when_idle);
    loop.after(o.worker.drain_timeout, [&loop] { loop.stop(); });
  });
  o.transfer.node = o.worker.name;
  MC_TRY(auto transfer, xfer::Engine::open(clock, o.transfer, metrics));
  MC_TRY(auto server, rpc::Server::open(loop, o.worker.listen, metrics));
  xfer::serve(*transfer, *server);
  const DummyEngine engine(spec, o.worker.block_size);
  MC_TRY(worker, DecodeWorker::open(loop, *transfer, *server, engine, config, metrics));
  MC_TRY(auto pages, http::Server::open(loop, o.worker.http, {}, [&](const http::Exchange& x) {
           const std::string state = state_of(*worker);
           if (http::serve_common(x, metrics, draining ? "draining" : "", state)) return;
           if (x.request().path == "/state")
             x.reply(200, "application/json", state);
           else
             x.reply(404, "text/plain",
                     "no such page: try /live, /ready, /health, /metrics or /state\n");
         }));
  const uint64_t epoch = transfer->generation().n;
  auto fill = [&](Heartbeat& beat) {
    beat.load = worker->load();
    beat.draining = draining;
  };
  MC_TRY(beats, Heartbeats::open(loop, identity(o, spec, *server, *pages, epoch),
                                 o.worker.conductor, o.worker.heartbeat, nullptr, fill, metrics));
  Endpoints me{.name = o.worker.name,
               .role = "decode",
               .epoch = epoch,
               .control = server->address(),
               .http = pages->address(),
               .events = "",
               .replay = "",
               .data = transfer->data_addresses()};
  MC_TRY_(o.daemon.ready(me));
  MC_TRY_(loop.run());
  o.daemon.stopping();
  const bool cut = !worker->idle();
  beats.reset();
  pages.reset();
  worker.reset();
  return cut ? 1 : 0;
}

}  // namespace
}  // namespace mc::serve

int main(int argc, char** argv) {
  mc::serve::DecodeOptionsAll options;
  mc::Program program("mc-decode", "decode worker: generates tokens from KV that prefill sends");
  program.options(options);
  program.example("mc-decode --conductor 127.0.0.1:5560", "join a conductor on this machine");
  program.exit_status(1, "failed, or a drain cut requests");
  program.run_with([&](mc::Context&) { return mc::serve::run(options); });
  return program.main(argc, argv);
}
