// mc-decode: the decode worker. The work is in lib/serve.
#include "base/json.h"
#include "cmd/command.h"
#include "cmd/worker.h"
#include "serve/decode_worker.h"

namespace mc::serve {
namespace {

struct DecodeProgram : WorkerShellOptions {
  Duration tbt_slo{};
  Duration kv_deadline = std::chrono::seconds(60), recompute_after{};
  Duration pool_timeout = std::chrono::seconds(2);
  DecodeProgram() {
    worker.listen = "127.0.0.1:5590";
    worker.http = "127.0.0.1:5591";
  }
  void describe(OptionList& v) {
    worker.describe(v);
    v("tbt-slo", tbt_slo, "a request joins the batch while a step stays within this; 0: always");
    v("kv-deadline", kv_deadline, "KV that has not come by then fails its request");
    v("recompute-after", recompute_after,
      "KV that has not come by then is computed here; 0: its request fails at the deadline");
    v("pool-timeout", pool_timeout, "how long a call to the pool may take");
    transfer.describe(v);
    daemon.describe(v);
  }
};

DecodeConfig configure(const DecodeProgram& o, const WorkerShell& shell) {
  DecodeConfig config;
  config.blocks = shell.blocks();
  config.time_scale = o.worker.time_scale;
  config.tbt_slo = o.tbt_slo;
  config.kv_deadline = o.kv_deadline;
  config.recompute_after = o.recompute_after;
  config.store.master = o.worker.master;
  config.store.timeout = o.pool_timeout;
  config.peer_timeout = o.transfer.peer_timeout;
  return config;
}

std::string state_of(const DecodeWorker& worker) {
  const WorkerLoad l = worker.load();
  return dump_json({{"waiting", l.waiting},
                    {"running", l.running},
                    {"blocks_total", l.blocks_total},
                    {"blocks_free", l.blocks_free},
                    {"tbt_ms", l.tbt_ms}});
}

Result<int> run(const DecodeProgram& o) {
  MC_TRY(const auto shell, WorkerShell::open("decode", o));
  MC_TRY(const auto worker,
         DecodeWorker::open(shell->loop(), shell->transfer(), shell->server(), shell->engine(),
                            configure(o, *shell), shell->metrics()));
  return shell->run({.load = [&] { return worker->load(); },
                     .drain = [&] { worker->drain(); },
                     .idle = [&] { return worker->idle(); },
                     .state = [&] { return state_of(*worker); }});
}

}  // namespace
}  // namespace mc::serve

int main(int argc, char** argv) {
  mc::serve::DecodeProgram options;
  mc::Program program("mc-decode", "decode worker: generates tokens from KV that prefill sends");
  program.options(options);
  program.example("mc-decode --conductor 127.0.0.1:5560", "join a conductor on this machine");
  program.exit_status(1, "failed, or a drain cut requests");
  program.run_with([&](mc::Context&) { return mc::serve::run(options); });
  return program.main(argc, argv);
}
