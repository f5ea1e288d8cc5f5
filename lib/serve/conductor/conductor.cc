#include "serve/conductor/conductor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "serve/conductor/conductor_metrics.h"

namespace mc::serve {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kStall = std::chrono::seconds(1);  // between two ticks: this process stood still

WorkerRegistryOptions workers_options(const ConductorOptions& o, const cost::ModelSpec& spec,
                                      uint64_t epoch) {
  return {.model = spec.name,
          .fingerprint = spec.fingerprint(o.block_size),
          .block_tokens = o.block_size,
          .epoch = epoch,
          .worker_ttl = o.worker_ttl,
          .snapshot_budget = o.step_timeout};
}

sched::RequestOptions request_options(const ConductorOptions& o) {
  return {.retries = o.retries,
          .step_timeout = o.step_timeout,
          .pin_timeout = std::max<Duration>(std::chrono::milliseconds(500), o.step_timeout / 10),
          .prefill_timeout = o.prefill_timeout,
          .answer_timeout = o.answer_timeout,
          .pair_wait = o.pair_wait,
          .token_timeout = o.token_timeout,
          .held_timeout = o.held_timeout,
          .queue_timeout = o.queue_timeout,
          .queue_max = o.queue_max,
          .continues = true};
}

}  // namespace

void ConductorOptions::describe(OptionList& v) {
  v("listen", listen, "control address; port 0 takes a free one");
  choice.describe(v);
  v("block-size", block_size, "tokens in a block of KV");
  policy.describe(v);
  admission.describe(v);
  pd.describe(v);
  v("retries", retries, "other workers to try when one fails");
  v("worker-ttl", worker_ttl, "a worker silent for this long is gone");
  v("snapshot-timeout", snapshot_timeout, "be ready after this, even if workers did not answer");
  v("step-timeout", step_timeout, "longest wait for a worker to reserve, allocate or commit");
  v("prefill-timeout", prefill_timeout, "longest wait for a prefill, its queue included");
  v("answer-timeout", answer_timeout,
    "longest wait for the whole answer of an external engine, where the client wants no stream");
  v("pair-wait", pair_wait,
    "longest wait for the half of a pair of external engines that answers, once the other has");
  v("token-timeout", token_timeout, "longest wait for the next token");
  v("tx-lease", tx_lease,
    "how long a prefill worker keeps blocks for a request that is not started or committed");
  v("queue-timeout", queue_timeout, "longest wait for room on the workers");
  v("queue-max", queue_max, "requests that may wait for room");
  v("explain-last", explain_last, "requests whose decisions /explain still knows");
  v("index-blocks", index_blocks, "blocks the index of caches may hold");
  v("master", master,
    "mc-master of the KV store that the workers use, so that decisions count its blocks; of "
    "several, "
    "all, separated by commas, or etcd://host:port[/prefix]; empty: none");
  v("models", models,
    "file of models that external engines serve beside --model, their aliases and adapters");
  v("foreign-engines", external_engines,
    "file with a JSON list of external engines, each as POST /register takes it");
  v("foreign-state", external_state,
    "file that keeps posted registrations over a restart; empty: a restart forgets them");
}

Result<> ConductorOptions::check() const {
  if (block_size == 0 || block_size > 65536)
    return fail(Code::kInvalid, "--block-size %llu, want 1 to 65536",
                static_cast<unsigned long long>(block_size));
  if (!(policy.balancing_threshold >= 1))
    return fail(Code::kInvalid, "--kvcache-balancing-threshold %g, want 1 or more",
                policy.balancing_threshold);
  if (!(policy.prefix_weight >= 0) || policy.prefix_weight > 1e6)
    return fail(Code::kInvalid, "--prefix-weight %g, want 0 to 1000000", policy.prefix_weight);
  if (admission.ttft_slo.count() < 0 || admission.tbt_slo.count() < 0)
    return fail(Code::kInvalid, "a negative --ttft-slo or --tbt-slo: 0s makes no promise");
  const std::pair<const char*, Duration> times[] = {{"worker-ttl", worker_ttl},
                                                    {"step-timeout", step_timeout},
                                                    {"tx-lease", tx_lease},
                                                    {"prefill-timeout", prefill_timeout},
                                                    {"pair-wait", pair_wait},
                                                    {"token-timeout", token_timeout},
                                                    {"queue-timeout", queue_timeout},
                                                    {"answer-timeout", answer_timeout},
                                                    {"decode-time", admission.decode_time}};
  for (const auto& [flag, time] : times)
    if (time.count() <= 0)
      return fail(Code::kInvalid, "--%s %s, want more than 0", flag, to_text(time).c_str());
  return pd.check();
}

Result<std::unique_ptr<Conductor>> Conductor::open(io::Loop& loop, const ConductorOptions& options,
                                                   uint64_t epoch, Metrics& metrics) {
  MC_TRY_(options.check());
  MC_TRY(ModelInfo model, open_model_info(options.choice));
  MC_TRY(auto server, rpc::Server::open(loop, options.listen, metrics));
  server->offer_shm("conductor");
  std::vector<ExternalOptions> engines;
  std::vector<ServedModel> models;
  if (!options.models.empty()) {
    MC_TRY(models, read_models(options.models));
  }
  if (!options.external_engines.empty()) {
    MC_TRY(engines, read_external(options.external_engines));
  }
  std::unique_ptr<Conductor> conductor(
      new Conductor(loop, options, std::move(model), epoch, metrics, std::move(server)));
  MC_TRY(conductor->pool_, PoolView::open(loop, options.master, conductor->spec().pool_name(),
                                          options.index_blocks, options.worker_ttl, metrics));
  if (!models.empty()) conductor->external_->catalog().offer(std::move(models));
  for (const ExternalOptions& e : engines) MC_TRY_(conductor->external_->add(e));
  if (!options.external_state.empty())
    MC_TRY_(conductor->external_->keep_in(options.external_state));
  return conductor;
}

Conductor::Conductor(io::Loop& loop, ConductorOptions options, ModelInfo model, uint64_t epoch,
                     Metrics& metrics, std::unique_ptr<rpc::Server> server)
    : loop_(loop),
      options_(std::move(options)),
      epoch_(epoch),
      started_(loop.clock().now()),
      metrics_(metrics),
      cost_(std::move(model.spec)),
      tokenizer_(std::move(model.tokenizer)),
      chat_(std::move(model.chat)),
      index_(options_.index_blocks),
      rpc_(std::move(server)),
      workers_(loop, workers_options(options_, cost_.spec(), epoch), index_, metrics),
      external_(std::make_unique<ExternalEngines>(
          loop, index_,
          ExternalEngines::Slots{[this] { return workers_.take_slot(); },
                                 [this](auto slot) { workers_.give_slot(slot); }},
          cost_.spec().name, options_.index_blocks, metrics)),
      engines_(std::make_unique<ExternalFleet>(
          *external_, index_, cost_.spec().name, [this] { return workers_.slots(); },
          [this](Id id) -> const GenerateRequest& { return jobs_.at(id)->ask; })),
      fleet_({options_.block_size, options_.policy, options_.admission}, cost_, index_,
             workers_.roster()),
      machine_(request_options(options_), fleet_),
      instruments_(std::make_unique<Instruments>(metrics)),
      decisions_(options_.explain_last),
      autoscaler_(options_.pd, metrics),
      rebalancer_(loop, workers_, metrics) {
  rpc_->on<Heartbeat>([this](const Heartbeat& m, const rpc::Call& call) {
    auto ack = workers_.heartbeat(m, call.now);
    if (ack) ack->control = rpc_->address();
    return ack;
  });
  rpc_->on<TokenBatch>([this](const TokenBatch& m, const rpc::Call&) { return tokens(m); });
  fleet_.engines = engines_.get();
  fleet_.pool = [this] { return pool_ ? &pool_->index() : nullptr; };
  workers_.on_gone = [this](const Worker& w, const std::string& why) {
    run(sched::WorkerGone{w.ref(), w.prefill, why, w.changed});
  };
  workers_.on_joined = [this](const Worker& w) {
    for (const std::string& request : workers_.owed_aborts.owed_to(w.ref()))
      abort_at(w.ref(), request, "it ended while the worker was away");
  };
  workers_.on_auto = [this](const Heartbeat& beat) {
    rebalancer_.joined(beat, autoscaler_.pressure(), loop_.now());
  };
  autoscaler_.leads = [this] { return workers_.leads(); };
  autoscaler_.is_moving = [this](Time now) { return rebalancer_.moving(now); };
  autoscaler_.on_move = [this](const sched::PdDecision& d, Time now) {
    return rebalancer_.move(d.move, d.reason, now);
  };
  ticks_.last = loop_.clock().now();
  ticks_.timer = loop_.every(kTick, [this] { tick(); });
}

Conductor::~Conductor() {
  loop_.cancel(ticks_.timer);
  for (const Id id : machine_.all()) run(sched::RequestCancelled{id, "the conductor ends"});
  for (const auto& [node, w] : workers_.all()) send_commits(w->ref());
}

sched::RequestAsk ask_of(const GenerateRequest& g) {
  sched::RequestAsk ask;
  ask.tokens = g.tokens();
  ask.prompt_tokens = g.prompt.size();
  ask.max_tokens = g.max_tokens;
  ask.priority = g.priority;
  ask.tenant = g.tenant;
  ask.streams = g.proxied && g.proxied->stream;
  ask.refusal = g.refusal;
  return ask;
}

std::vector<uint64_t> tags_of(const GenerateRequest& g, uint64_t block_size) {
  std::vector<uint64_t> tags;
  for (const BlockHash& h : chain_hashes(g.prompt, block_size, g.cache_salt))
    tags.push_back(h.tag());
  return tags;
}

sched::Decision Conductor::dry_run(const GenerateRequest& request) const {
  const Time now = loop_.now();
  const sched::RequestAsk ask = ask_of(request);
  sched::View v = fleet_.view(ask, tags_of(request, options_.block_size), nullptr, now);
  engines_->add(request, nullptr, v, now);
  return fleet_.decide(v, ask, now, now);
}

void Conductor::tick() {
  const Time now = loop_.now();
  // What nobody could do while this process stood still is not late.
  if (const Duration gap = now - std::exchange(ticks_.last, now); gap > kStall) {
    log_warn("conductor", "this process stood still for %.1f s: deadlines are extended",
             to_seconds(gap));
    run(sched::ClockStoodStill{gap - kTick});
  }
  workers_.tick(now);
  external_->tick(now);
  index_.tick(now);
  pool_->tick();
  autoscaler_.tick(autoscaler_.deadline() <= now ? loads() : PoolLoads{}, now);
  std::vector<sched::RequestAction> actions;
  const Time before = loop_.clock().now();
  machine_.tick(now, actions);
  carry_out(actions, {}, before);
}

}  // namespace mc::serve
