// mc-prefill: the prefill worker. The work is in lib/serve.
#include "base/json.h"
#include "cmd/command.h"
#include "cmd/worker.h"
#include "serve/prefill_worker.h"

namespace mc::serve {
namespace {

struct PrefillProgram : WorkerShellOptions {
  uint32_t chunk_tokens = 1024;
  std::string pool_reuse = "auto";
  Duration pool_timeout = std::chrono::seconds(2);
  PrefillProgram() {
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

PrefillConfig configure(const PrefillProgram& o, const WorkerShell& shell) {
  PrefillConfig config;
  config.blocks = shell.blocks();
  config.epoch = shell.epoch();
  config.chunk_tokens = o.chunk_tokens;
  config.time_scale = o.worker.time_scale;
  config.pool_reuse = o.pool_reuse;
  config.push_timeout = o.transfer.peer_timeout * 3;
  config.store.master = o.worker.master;
  config.store.timeout = o.pool_timeout;
  return config;
}

Result<int> run(const PrefillProgram& o) {
  MC_TRY(const auto shell, WorkerShell::open("prefill", o));
  MC_TRY(const auto worker,
         PrefillWorker::open(shell->loop(), shell->transfer(), shell->server(), shell->engine(),
                             configure(o, *shell), shell->metrics()));
  worker->on_news([&shell] { shell->nudge(); });
  return shell->run({.load = [&] { return worker->load(); },
                     .drain = [&] { worker->drain(); },
                     .idle = [&] { return worker->idle(); },
                     .state =
                         [&] {
                           worker->update_metrics();
                           return dump_json(worker->state());
                         },
                     .cache = &worker->cache()});
}

}  // namespace
}  // namespace mc::serve

int main(int argc, char** argv) {
  mc::serve::PrefillProgram options;
  mc::Program program("mc-prefill", "prefill worker: computes the KV of prompts and pushes it on");
  program.options(options);
  program.example("mc-prefill --conductor 127.0.0.1:5560 --master 127.0.0.1:5550",
                  "join a conductor and a KV store on this machine");
  program.exit_status(1, "failed, or a drain cut requests");
  program.run_with([&](mc::Context&) { return mc::serve::run(options); });
  return program.main(argc, argv);
}
