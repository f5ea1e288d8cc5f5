// mc-prefill: the prefill worker. The work is in lib/serve.
#include "base/json.h"
#include "cmd/command.h"
#include "cmd/worker.h"
#include "sched/prefill_order.h"
#include "serve/lookup_bridge.h"
#include "serve/prefill_worker.h"

namespace mc::serve {
namespace {

struct PrefillProgram : WorkerShellOptions {
  uint32_t chunk_tokens = 1024;
  std::string prefill_order = "fcfs";
  double ageing = 0.1;
  std::string pool_reuse = "auto", connector = "multi", layerwise = "on", lookup;
  Duration pool_timeout = std::chrono::seconds(2);
  PrefillProgram() {
    worker.listen = "127.0.0.1:5580";
    worker.http = "127.0.0.1:5581";
  }
  void describe(OptionList& v) {
    worker.describe(v);
    v("chunk-tokens", chunk_tokens, "tokens computed at a time; a multiple of the block size");
    v("prefill-order", prefill_order,
      "the first that came, or the one with the least left to compute", sched::kPrefillOrders);
    v("ageing", ageing,
      "of srpf: a second of waiting counts like this many seconds less to compute");
    v("pool-reuse", pool_reuse, "fetch KV from the pool where that is predicted faster, or else",
      {"auto", "always", "never"});
    v("connector", connector,
      "how KV gets to decode workers: push writes it there; pull lets them read it; pool puts it "
      "in "
      "the KV store for them; multi pushes it, and fills the store for later requests",
      {"push", "pull", "pool", "multi"});
    v("layerwise", layerwise,
      "push and pull send each layer while the next one computes; off: all "
      "at the end",
      {"on", "off"});
    v("lookup", lookup,
      "unix socket where schedulers of other engines ask how many blocks of a prompt "
      "are here or in the pool; empty: none");
    v("pool-timeout", pool_timeout, "how long a call to the pool may take");
    transfer.describe(v);
    daemon.describe(v);
  }
};

Result<PrefillConfig> configure(const PrefillProgram& o, const WorkerShell& shell) {
  PrefillConfig config;
  MC_TRY(config.connector, connector_named(o.connector));
  config.layerwise = o.layerwise == "on";
  config.blocks = shell.blocks();
  config.epoch = shell.epoch();
  config.chunk_tokens = o.chunk_tokens;
  config.order = o.prefill_order;
  config.ageing = o.ageing;
  config.time_scale = o.worker.time_scale;
  config.pool_reuse = o.pool_reuse;
  config.send_timeout = o.transfer.peer_timeout * 3;
  config.store.master = o.worker.master;
  config.store.timeout = o.pool_timeout;
  return config;
}

Result<int> run(const PrefillProgram& o) {
  MC_TRY(const auto shell, WorkerShell::open("prefill", o));
  MC_TRY(const PrefillConfig config, configure(o, *shell));
  MC_TRY(const auto worker, PrefillWorker::open(shell->loop(), shell->transfer(), shell->server(),
                                                shell->engine(), config, shell->metrics()));
  std::unique_ptr<LookupBridge> bridge;
  if (!o.lookup.empty()) {
    MC_TRY(bridge, LookupBridge::open(
                       shell->loop(), o.lookup, o.worker.block_size,
                       [&](const std::vector<BlockHash>& hashes, std::function<void(size_t)> done) {
                         worker->lookup(hashes, std::move(done));
                       },
                       shell->metrics()));
  }
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
  mc::Program program("mc-prefill", "prefill worker: computes the KV of prompts and sends it on");
  program.options(options);
  program.example("mc-prefill --conductor 127.0.0.1:5560 --master 127.0.0.1:5550",
                  "join a conductor and a KV store on this machine");
  program.exit_status(1, "failed, or a drain cut requests");
  program.run_with([&](mc::Context&) { return mc::serve::run(options); });
  return program.main(argc, argv);
}
