#include "cmd/worker.h"

#include <unistd.h>

#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "cmd/command.h"
#include "sched/pool/pool_index.h"
#include "sched/prefill_order.h"
#include "serve/protocol/model_info.h"
#include "serve/runtime/prompt_lookup.h"
#include "serve/worker/decode_memory.h"

namespace mc {

WorkerProgram::WorkerProgram(std::string role_, std::string listen, std::string http)
    : role(std::move(role_)) {
  worker.listen = std::move(listen);
  worker.http = std::move(http);
}

void WorkerProgram::describe(OptionList& v) {
  v("role", role,
    "prefill computes prompts, decode generates tokens, both does both over one pool of KV "
    "blocks; auto takes the role that the conductor gives it",
    {"prefill", "decode", "both", "auto"});
  worker.describe(v);
  v("chunk-tokens", chunk_tokens, "prompt tokens computed at a time; a multiple of the block size");
  v("prefill-order", prefill_order,
    "order of queued prompts: first come, first served, or the least left to compute first",
    sched::kPrefillOrders);
  v("ageing", ageing, "for srpf: a second of waiting counts as this many seconds less to compute");
  v("connector", connector,
    "how KV gets to decode workers: push writes it there; pull lets them read it; pool puts it in "
    "the KV store for them; multi pushes it, and fills the store for later requests",
    {"push", "pull", "pool", "multi"});
  v("layerwise", layerwise,
    "push and pull send each layer while the next one computes; off: all at the end",
    {"on", "off"});
  v("pool-reuse", pool_reuse,
    "fetch KV from the pool if that is predicted to be faster than computing (auto), always, or "
    "never",
    {"auto", "always", "never"});
  v("pool-load", pool_load,
    "layerwise: compute while later layers of KV still come from the pool; verify all at the end",
    {"whole", "layerwise"});
  v("cache-answers", cache_answers,
    "keep the KV of generated tokens for prompts that begin with them, as the next turn of a chat: "
    "in the pool, and with role both here too",
    {"on", "off"});
  v("preempt", preempt,
    "what becomes of the KV of the youngest answers when blocks run out: copied to host memory or "
    "put into the pool (swap), computed again (recompute), or what is predicted to be faster "
    "(auto); off: each request takes the blocks of its prompt and its whole answer at once",
    serve::kPreemptModes);
  v("watermark", watermark,
    "share of the blocks that new requests leave free for answers that grow");
  v("swap-memory", swap_memory, "host memory for the KV of preempted requests");
  v("speculate", speculate,
    "guess up to so many next tokens of an answer from the text before them and check them in its "
    "next step: faster where an answer quotes its prompt; the tokens are the same (cpu engine); "
    "0: none");
  v("stage", stage,
    "I/N: this process is stage I of a pipeline of N that computes prompts, and has that slice of "
    "the layers; it joins no conductor; empty: all layers, or those of the head of --cpp-group");
  v("cpp-group", cpp_group,
    "this worker is the head of a pipeline and has the first slice of the layers: control "
    "addresses of stages 2, 3, ... in order; it joins conductors for all of them");
  v("pool-timeout", pool_timeout, "how long a call to the pool may take");
  v("pool-put-wait", pool_put_wait, "how long a block waits for room, within --pool-timeout");
  v("lookup", lookup,
    "unix socket where schedulers of other engines ask how many blocks of a prompt are here or in "
    "the pool; empty: none");
  v("tbt-slo", tbt_slo,
    "requests join the batch while the predicted step time stays within this; 0: always");
  v("kv-deadline", kv_deadline,
    "a request fails if its KV takes longer than this or the conductor's timeouts; 0: than these");
  v("recompute-after", recompute_after,
    "compute a prompt here if its KV takes longer than this from elsewhere; 0: its request fails");
  v("conductor-timeout", conductor_timeout,
    "tokens are sent again to a conductor that takes none; after this its requests end");
  v("trace-events", trace_events,
    "file for a Chrome trace of computing, sending and decoding; written at the end");
  otlp.describe(v);
  v("calibrate", calibrate,
    "measure how long this engine's prompts and steps take, write the model's spec with the fitted "
    "times to this file, for --cost and mc-replay sim, and end");
  v("calibrate-tokens", calibrate_tokens, "the longest prompt that --calibrate measures");
  transfer.describe(v);
  daemon.describe(v);
}

Result<> WorkerProgram::check() const {
  if (pool_timeout <= Duration::zero())
    return fail(Code::kInvalid, "--pool-timeout: want more than 0, as 2s");
  if (conductor_timeout <= Duration::zero())
    return fail(Code::kInvalid, "--conductor-timeout: want more than 0, as 60s");
  if (!(watermark >= 0 && watermark <= 0.5))
    return fail(Code::kInvalid, "--watermark %s: want 0 to 0.5", number_text(watermark).c_str());
  if (speculate > serve::PromptLookup::kMost)
    return fail(Code::kInvalid, "--speculate %u: want 0 to %zu", speculate,
                serve::PromptLookup::kMost);
  const bool decodes = role != "prefill";
  if (speculate > 0 && decodes &&
      (worker.choice.engine == "cuda" || !serve::computes(worker.choice)))
    return fail(Code::kUnsupported,
                "--speculate %u: the %s engine checks no guesses: give --engine cpu, or "
                "--speculate 0",
                speculate, worker.choice.engine == "cuda" ? "cuda" : "dummy");
  if ((!stage.empty() || !cpp_group.empty()) && role != "prefill")
    return fail(Code::kInvalid, "--stage and --cpp-group are for --role prefill, not %s",
                escape(role).c_str());
  if (!stage.empty() && !cpp_group.empty())
    return fail(Code::kInvalid,
                "--cpp-group is for the head of a pipeline, --stage for the others");
  return {};
}

Result<serve::Slicing> WorkerProgram::slicing() const {
  if (!cpp_group.empty()) return serve::Slicing{0, static_cast<uint32_t>(cpp_group.size()) + 1};
  if (stage.empty()) return serve::Slicing{};
  unsigned i = 0, n = 0;
  int end = 0;
  if (std::sscanf(stage.c_str(), "%3u/%3u%n", &i, &n, &end) != 2 ||
      static_cast<size_t>(end) != stage.size() || i < 2 || i > n)
    return fail(Code::kInvalid,
                "--stage %s: want I/N, as 2/2, for stage I of N; the head, stage 1, is the worker "
                "with --cpp-group",
                escape(stage).c_str());
  return serve::Slicing{i - 1, n};
}

serve::PipelineConfig WorkerProgram::pipeline_config(const serve::PrefillConfig& prefill,
                                                     uint32_t number) const {
  serve::PipelineConfig c;
  c.fingerprint = prefill.fingerprint;
  c.stage = number;
  c.blocks = prefill.blocks;
  c.time_scale = prefill.time_scale;
  c.connector = prefill.connector;
  c.layerwise = prefill.layerwise;
  c.send_timeout = prefill.send_timeout;
  c.patience = prefill.pipeline_patience;
  c.store = prefill.store;
  c.trace = prefill.trace;
  return c;
}

Result<serve::PrefillConfig> WorkerProgram::prefill(uint32_t blocks) const {
  serve::PrefillConfig c;
  MC_TRY(c.connector, serve::connector_named(connector));
  c.layerwise = layerwise == "on";
  c.blocks = blocks;
  c.chunk_tokens = chunk_tokens;
  c.order = prefill_order;
  c.ageing = ageing;
  c.time_scale = worker.time_scale;
  c.pool_reuse = pool_reuse;
  c.pool_layers = pool_load == "layerwise";
  c.send_timeout = transfer.peer_timeout * 3;
  c.store.master = worker.master;
  c.store.timeout = pool_timeout;
  c.store.put_wait = pool_put_wait;
  c.pool = pool;
  c.stages = cpp_group;
  c.pipeline_patience = transfer.peer_timeout;
  return c;
}

serve::DecodeConfig WorkerProgram::decode(uint32_t blocks) const {
  serve::DecodeConfig c;
  c.blocks = blocks;
  c.time_scale = worker.time_scale;
  c.tbt_slo = tbt_slo;
  c.kv_deadline = kv_deadline;
  c.recompute_after = recompute_after;
  c.cache_answers = cache_answers == "on";
  c.preempt = preempt;
  c.watermark = watermark;
  c.speculate = speculate;
  c.swap_bytes = swap_memory.n;
  c.conductor_timeout = conductor_timeout;
  c.peer_timeout = transfer.peer_timeout;
  c.store.master = worker.master;
  c.store.timeout = pool_timeout;
  c.store.put_wait = pool_put_wait;
  return c;
}

Result<std::unique_ptr<WorkerShell>> WorkerShell::open(WorkerProgram options) {
  MC_TRY_(options.daemon.load());
  MC_TRY_(options.check());
  const serve::WorkerOptions& w = options.worker;
  MC_TRY(const serve::ModelInfo info, configured(serve::open_model_info(w.choice)));
  MC_TRY(const serve::Slicing slicing, options.slicing());
  MC_TRY_(cost::slice_of(info.spec, slicing.stage, slicing.stages));
  cost::ModelSpec largest = info.spec;  // its slice limits the blocks of the whole pipeline
  largest.layers = (largest.layers + slicing.stages - 1) / slicing.stages;
  MC_TRY(const uint32_t blocks, w.count_blocks(largest));  // fails before weights are read
  if (options.worker.name.empty())
    options.worker.name = options.role + "-" + std::to_string(::getpid());
  options.transfer.node = options.worker.name;
  std::unique_ptr<WorkerShell> shell(new WorkerShell(std::move(options)));
  const WorkerProgram& o = shell->options_;
  if (!o.trace_events.empty()) {  // fails now, not at the end, if it cannot be written
    MC_TRY_(shell->trace_.write(o.trace_events, o.worker.name));
  }
  MC_TRY(shell->tracer_, telemetry::Tracer::open(o.otlp, "mc-" + o.role, o.worker.name,
                                                 shell->clock_, shell->metrics_));
  shell->whole_ = info.spec;
  MC_TRY(shell->engine_,
         serve::open_engine(o.worker.choice, o.worker.cpu, o.worker.block_size, slicing));
  const serve::EngineChoice& choice = o.worker.choice;  // a name of no file is for trying things
  if (choice.engine == "auto" && choice.model.ends_with(".json") && !serve::computes(choice))
    log_warn("worker",
             "--model %s: a specification without weights: the dummy engine answers, its words are "
             "made up",
             escape(choice.model).c_str());
  if (shell->engine_->device_kv())
    shell->device_kv_ = std::make_unique<serve::DeviceKvMetrics>(shell->metrics_);
  MC_TRY(shell->transfer_, xfer::Engine::open(shell->clock_, o.transfer, shell->metrics_));
  MC_TRY(shell->server_, rpc::Server::open(shell->loop_, o.worker.listen, shell->metrics_));
  shell->server_->offer_shm("worker");
  xfer::serve(*shell->transfer_, *shell->server_);
  shell->server_->on<serve::Dismiss>(
      [s = shell.get()](const serve::Dismiss& m, const rpc::Call&) -> Result<rpc::Empty> {
        log_info("worker", "dismissed: %s", escape(m.why).c_str());
        if (!s->draining_) (void)s->loop_.post([s] { s->signal(1); });  // after the reply
        return rpc::Empty{};
      });
  MC_TRY_(shell->open_work(blocks));
  return shell;
}

WorkerShell::WorkerShell(WorkerProgram options)
    : options_(std::move(options)), loop_(clock_), signals_(loop_, [this](int n) { signal(n); }) {}

Result<> WorkerShell::open_work(uint32_t blocks) {
  MC_TRY(serve::PrefillConfig prefill, options_.prefill(blocks));
  prefill.fingerprint = whole_.fingerprint(options_.worker.block_size);
  if (!options_.trace_events.empty()) prefill.trace = &trace_;
  prefill.tracer = tracer_.get();
  if (options_.stage.empty()) return open_roles(std::move(prefill), blocks);
  MC_TRY(const serve::Slicing slicing, options_.slicing());
  MC_TRY(pipeline_worker_,
         serve::PipelineWorker::open(loop_, *transfer_, *server_, *engine_,
                                     options_.pipeline_config(prefill, slicing.stage), metrics_));
  return {};
}

Result<> WorkerShell::open_roles(serve::PrefillConfig prefill, uint32_t blocks) {
  MC_TRY(const serve::Role role, serve::role_named(options_.role));
  serve::DecodeConfig decode = options_.decode(blocks);
  decode.trace = prefill.trace;
  decode.tracer = prefill.tracer;
  decode.tokenizer = [choice = options_.worker.choice]() -> Result<model::Tokenizer> {
    MC_TRY(serve::ModelInfo info, serve::open_model_info(choice));
    return std::move(info.tokenizer);
  };
  MC_TRY(roles_, serve::RoleManager::open({loop_, *transfer_, *server_, *engine_, metrics_},
                                          std::move(prefill), std::move(decode), role));
  roles_->on_change([this](bool joined) {
    if (!joined) return nudge();
    if (const auto again = join(); !again) log_error("worker", "%s", again.error().what.c_str());
  });
  if (options_.lookup.empty()) return {};
  const auto lookup = [this](const std::vector<BlockHash>& hashes,
                             std::function<void(size_t)> done) {
    serve::PrefillWorker* const prefill_instance = roles_->prefill();
    if (prefill_instance == nullptr) return done(0);  // no prefill role now
    prefill_instance->lookup(hashes, std::move(done));
  };
  auto bridge = serve::LookupBridge::open(loop_, options_.lookup, options_.worker.block_size,
                                          lookup, metrics_);
  if (!bridge)
    return fail(bridge.error().code, "--lookup: %s: give a path where a socket can be made",
                bridge.error().what.c_str());
  bridge_ = std::move(*bridge);
  return {};
}

void WorkerShell::signal(int n) {
  if (n > 1 || !running_) return loop_.stop();
  draining_ = true;
  if (pipeline_worker_ != nullptr)
    pipeline_worker_->drain();
  else
    roles_->drain();
  nudge();
  loop_.every(std::chrono::milliseconds(20), [this] {
    if (idle()) loop_.stop();
  });
  loop_.after(options_.worker.drain_timeout, [this] { loop_.stop(); });
}

void WorkerShell::nudge() {
  for (const auto& beat : beats_) beat->nudge();
}

std::string WorkerShell::state() const {
  return pipeline_worker_ != nullptr ? dump_json(pipeline_worker_->state()) : roles_->state();
}

void WorkerShell::answer(const http::Exchange& x) const {
  const std::string state = this->state() + "\n";
  if (device_kv_ != nullptr) device_kv_->update(*engine_->device_kv());
  if (http::serve_common(x, metrics_, draining_ ? "draining" : "", state)) return;
  if (x.request().path == "/state")
    x.reply(200, "application/json", state);
  else
    x.reply(404, "text/plain", "no such page: try /live, /ready, /health, /metrics or /state\n");
}

serve::Heartbeat WorkerShell::identity(const serve::RoleInstance& instance) const {
  serve::Heartbeat me;
  me.node = options_.worker.name + instance.suffix;
  me.role = instance.role;
  me.epoch = roles_->epoch();
  me.control = server_->address();
  me.http = http_;
  me.model = whole_.name;
  me.fingerprint = whole_.fingerprint(options_.worker.block_size);
  me.block_tokens = options_.worker.block_size;
  me.context_max = whole_.context_max;
  me.srpf = options_.prefill_order == "srpf";
  if (!options_.worker.master.empty() && options_.cpp_group.empty())
    me.pool_reuse = static_cast<uint8_t>(options_.pool_reuse == "always" ? sched::PoolUse::kAlways
                                         : options_.pool_reuse == "auto" ? sched::PoolUse::kAuto
                                                                         : sched::PoolUse::kNever);
  me.ageing = options_.ageing;
  if (me.role == "prefill") {
    me.chunk_tokens = options_.chunk_tokens;
    me.stages = static_cast<uint32_t>(options_.cpp_group.size() + 1);
  }
  return me;
}

Result<> WorkerShell::join() {
  const serve::WorkerOptions& o = options_.worker;
  beats_.clear();
  if (pipeline_worker_ != nullptr) return {};  // its head joins
  for (const serve::RoleInstance& instance : roles_->instances()) {
    const auto fill = [this, load = instance.load](serve::Heartbeat& beat,
                                                   const std::string& conductor) {
      beat.load = load(conductor);
      beat.draining = roles_->draining() || !roles_->whole();
    };
    MC_TRY(auto beats, serve::Heartbeats::open(loop_, identity(instance), o.conductor, o.heartbeat,
                                               instance.cache, fill, metrics_));
    beats_.push_back(std::move(beats));
  }
  if (serve::PrefillWorker* const prefill = roles_->prefill())
    prefill->on_state_changed([this] { nudge(); });
  return {};
}

Result<int> WorkerShell::run() {
  running_ = true;
  MC_TRY(const auto pages, http::Server::open(loop_, options_.worker.http, {},
                                              [this](const http::Exchange& x) { answer(x); }));
  http_ = pages->address();
  MC_TRY_(join());
  MC_TRY_(
      options_.daemon.ready(Endpoints{.name = options_.worker.name,
                                      .role = pipeline_worker_ != nullptr ? "stage" : options_.role,
                                      .epoch = roles_ != nullptr ? roles_->epoch() : 0,
                                      .control = server_->address(),
                                      .http = http_,
                                      .events = "",
                                      .replay = "",
                                      .data = transfer_->data_addresses()}));
  MC_TRY_(loop_.run());
  options_.daemon.stopping();
  beats_.clear();
  if (!options_.trace_events.empty()) {
    MC_TRY_(trace_.write(options_.trace_events, options_.worker.name));
  }
  return idle() ? 0 : 1;
}

int worker_main(int argc, char** argv, const char* program_name, const char* does,
                WorkerProgram options) {
  Program program(program_name, does);
  program.options(options);
  program.example(strf("%s --conductor 127.0.0.1:5560 --master 127.0.0.1:5550", program_name),
                  "join a conductor and a KV store on this machine");
  program.example(strf("%s --role both --conductor 127.0.0.1:5560", program_name),
                  "compute prompts and answer them in one process");
  program.example(strf("%s --model DIR --calibrate times.json", program_name),
                  "how fast this machine computes that model");
  program.exit_status(1, "failed, or a drain cut requests");
  program.run_with([&](Context&) -> Result<int> {
    options.worker.cpu.command.assign(argv, argv + argc);
    options.worker.cpu.environment = process_environment();
    const std::string is_rank = std::string(serve::kRankSeat) + "=";
    for (const std::string& entry : options.worker.cpu.environment) {
      if (!entry.starts_with(is_rank)) continue;
      MC_TRY(auto seat, serve::take_rank_seat(entry.substr(is_rank.size())));
      return serve::run_rank(options.worker.choice, options.worker.cpu, options.worker.block_size,
                             std::move(seat));
    }
    if (!options.calibrate.empty()) return calibrate_engine(options);
    MC_TRY(const auto shell, WorkerShell::open(options));
    return shell->run();
  });
  return program.main(argc, argv);
}

}  // namespace mc
