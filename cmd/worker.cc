#include "cmd/worker.h"

#include <unistd.h>

namespace mc {

Result<std::unique_ptr<WorkerShell>> WorkerShell::open(std::string role,
                                                       WorkerShellOptions options) {
  MC_TRY_(options.daemon.load());
  const serve::WorkerOptions& w = options.worker;
  MC_TRY(const serve::ModelInfo info, serve::open_model_info(w.choice));
  MC_TRY(const uint32_t blocks, w.count_blocks(info.spec));  // before weights are read
  MC_TRY(auto engine, serve::open_engine(w.choice, w.cpu, w.block_size));
  if (options.worker.name.empty()) options.worker.name = role + "-" + std::to_string(::getpid());
  options.transfer.node = options.worker.name;
  std::unique_ptr<WorkerShell> shell(
      new WorkerShell(std::move(role), std::move(options), std::move(engine), blocks));
  const WorkerShellOptions& o = shell->options_;
  MC_TRY(shell->transfer_, xfer::Engine::open(shell->clock_, o.transfer, shell->metrics_));
  MC_TRY(shell->server_, rpc::Server::open(shell->loop_, o.worker.listen, shell->metrics_));
  xfer::serve(*shell->transfer_, *shell->server_);
  return shell;
}

WorkerShell::WorkerShell(std::string role, WorkerShellOptions options,
                         std::unique_ptr<serve::Engine> engine, uint32_t blocks)
    : role_(std::move(role)),
      options_(std::move(options)),
      engine_(std::move(engine)),
      blocks_(blocks),
      loop_(clock_),
      signals_(loop_, [this](int n) { signal(n); }) {}

void WorkerShell::signal(int n) {
  if (n > 1 || !running_) return loop_.stop();
  draining_ = true;
  hooks_.drain();
  nudge();
  loop_.every(std::chrono::milliseconds(20), [this] {
    if (hooks_.idle()) loop_.stop();
  });
  loop_.after(options_.worker.drain_timeout, [this] { loop_.stop(); });
}

void WorkerShell::nudge() {
  if (beats_ != nullptr) beats_->nudge();
}

void WorkerShell::answer(const http::Exchange& x) const {
  const std::string state = hooks_.state() + "\n";
  if (http::serve_common(x, metrics_, draining_ ? "draining" : "", state)) return;
  if (x.request().path == "/state")
    x.reply(200, "application/json", state);
  else
    x.reply(404, "text/plain", "no such page: try /live, /ready, /health, /metrics or /state\n");
}

serve::Heartbeat WorkerShell::identity(const std::string& http) const {
  serve::Heartbeat me;
  me.node = options_.worker.name;
  me.role = role_;
  me.epoch = epoch();
  me.control = server_->address();
  me.http = http;
  const spec::ModelSpec& spec = engine_->spec();
  me.model = spec.name;
  me.fingerprint = spec.fingerprint(options_.worker.block_size);
  me.block_tokens = options_.worker.block_size;
  me.context_max = spec.context_max;
  return me;
}

Result<int> WorkerShell::run(WorkerHooks hooks) {
  hooks_ = std::move(hooks);
  running_ = true;
  const serve::WorkerOptions& o = options_.worker;
  MC_TRY(const auto pages,
         http::Server::open(loop_, o.http, {}, [this](const http::Exchange& x) { answer(x); }));
  const auto fill = [this](serve::Heartbeat& beat) {
    beat.load = hooks_.load();
    beat.draining = draining_;
  };
  const serve::Heartbeat me = identity(pages->address());
  MC_TRY(beats_, serve::Heartbeats::open(loop_, me, o.conductor, o.heartbeat, hooks_.cache, fill,
                                         metrics_));
  MC_TRY_(options_.daemon.ready(Endpoints{.name = me.node,
                                          .role = me.role,
                                          .epoch = me.epoch,
                                          .control = me.control,
                                          .http = me.http,
                                          .events = "",
                                          .replay = "",
                                          .data = transfer_->data_addresses()}));
  MC_TRY_(loop_.run());
  options_.daemon.stopping();
  beats_.reset();
  return hooks_.idle() ? 0 : 1;
}

}  // namespace mc
