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

// How slow fetches from the holders of the longest match are, for the readers where that is known.
void weigh_fetches(sched::View& view, const sched::Matches& matches, const WorkerRegistry& workers,
                   Time now) {
  std::optional<std::vector<const Worker*>> holders;
  for (sched::PrefillView& node : view.prefill) {
    const auto reader = workers.all().find(node.name);
    if (reader == workers.all().end() || !reader->second->fetches.any(now)) continue;
    if (!holders) {
      holders.emplace();
      const uint32_t longest = matches.longest();
      for (const auto& [name, w] : workers.all())
        if (w->prefill && !w->draining && longest > 0 && matches.of(w->slot) == longest)
          holders->push_back(w.get());
    }
    std::optional<double> least;  // source_of takes that one
    for (const Worker* w : *holders) {
      const double factor = reader->second->fetches.factor(w->node, now);
      if (w->node != node.name && (!least || factor < *least)) least = factor;
    }
    node.fetch_congestion = least.value_or(1);
  }
}

}  // namespace

void ConductorOptions::describe(OptionList& v) {
  v("listen", listen, "control address; port 0 takes a free one");
  choice.describe(v);
  v("block-size", block_size, "tokens in a block of KV");
  policy.describe(v);
  admission.describe(v);
  pd.describe(v);
  v("retries", retries, "other workers to try when one fails before the first token");
  v("worker-ttl", worker_ttl, "a worker silent for this long is gone");
  v("snapshot-timeout", snapshot_timeout, "be ready after this, even if workers did not answer");
  v("step-timeout", step_timeout, "longest wait for a worker to reserve, allocate or commit");
  v("prefill-timeout", prefill_timeout, "longest wait for a prefill, its queue included");
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
                                                    {"token-timeout", token_timeout},
                                                    {"queue-timeout", queue_timeout},
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
      forecast_(options_.admission.decode_time),
      rpc_(std::move(server)),
      workers_(loop, workers_options(options_, cost_.spec(), epoch), index_, metrics),
      candidates_(options_.policy, cost_),
      external_(std::make_unique<ExternalEngines>(
          loop, index_,
          ExternalEngines::Slots{[this] { return workers_.take_slot(); },
                                 [this](auto slot) { workers_.give_slot(slot); }},
          cost_.spec().name, options_.index_blocks, metrics)),
      instruments_(std::make_unique<Instruments>(metrics)),
      decisions_(options_.explain_last),
      autoscaler_(options_.pd, metrics),
      rebalancer_(loop, workers_, metrics) {
  rpc_->on<Heartbeat>([this](const Heartbeat& m, const rpc::Call& call) {
    return workers_.heartbeat(m, call.now);
  });
  rpc_->on<TokenBatch>([this](const TokenBatch& m, const rpc::Call&) { return tokens(m); });
  workers_.on_gone = [this](const Worker& w, const std::string& why) { worker_gone(w, why); };
  workers_.on_auto = [this](const Heartbeat& beat) {
    rebalancer_.joined(beat, autoscaler_.pressure(), loop_.now());
  };
  autoscaler_.is_moving = [this](Time now) { return rebalancer_.moving(now); };
  autoscaler_.on_move = [this](const sched::PdDecision& d, Time now) {
    return rebalancer_.move(d.move, d.reason, now);
  };
  ticks_.last = loop_.clock().now();
  ticks_.timer = loop_.every(kTick, [this] { tick(); });
}

Conductor::~Conductor() {
  loop_.cancel(ticks_.timer);
  for (auto& [id, job] : jobs_) release(*job, "the conductor ends");
  for (const auto& [node, w] : workers_.all()) send_commits(*w);
}

// What a worker locks for a request: prefill its prompt, decode its output too.
uint64_t Conductor::blocks_needed(bool prefill, uint64_t tokens, uint32_t max_tokens) const {
  return (tokens + (prefill ? 0 : max_tokens) + options_.block_size - 1) / options_.block_size;
}

sched::View Conductor::view(const std::vector<uint64_t>& tags, const GenerateRequest& ask,
                            const Job* job) const {
  const Time now = loop_.now();
  const uint64_t tokens = ask.prompt.size();
  const auto match = index_.match(tags, workers_.slots());
  const int64_t priority = job != nullptr ? job->ask.priority : 0;
  const auto reusable = [&](uint64_t held) {
    return std::min(held, tokens == 0 ? 0 : (tokens - 1) / options_.block_size) *
           options_.block_size;
  };
  sched::View v;
  v.pool =
      pool_->index().match(tags, match.empty() ? 0 : *std::max_element(match.begin(), match.end()));
  const DecodeNeed need{blocks_needed(false, tokens, ask.max_tokens),
                        blocks_needed(true, tokens, 0)};
  for (const auto& [node, w] : workers_.all()) {
    const bool full = ask.refusal || (job != nullptr && job->full.contains(node));
    if (w->prefill) {
      const double work = cost_.prefill_ms(tokens, reusable(match[w->slot]));
      v.prefill.push_back(prefill_view(*w, match[w->slot], work, priority, need.prompt, now));
      if (full) v.prefill.back().usable = false;
    } else {
      v.decode.push_back(decode_view(*w, need));
      if (full) v.decode.back().usable = false;
    }
  }
  if (std::any_of(workers_.all().begin(), workers_.all().end(),
                  [&](const auto& entry) { return entry.second->fetches.any(now); }))
    weigh_fetches(v, index_.matches(tags, workers_.slots()), workers_, now);
  add_external(v, ask, job);
  if (job == nullptr || job->avoid.empty()) return v;
  const auto avoid = [&](auto& nodes) {  // unless nothing would be left
    const auto good = [&](const auto& n) { return n.usable && !job->avoid.contains(n.name); };
    if (std::none_of(nodes.begin(), nodes.end(), good)) return;
    for (auto& n : nodes) n.usable = good(n);
  };
  avoid(v.prefill);
  avoid(v.decode);
  return v;
}

sched::View Conductor::short_view(const Job& job) {
  const uint64_t n = job.ask.tokens();
  if (!job.ask.refusal && job.full.empty() && job.avoid.empty() && job.ask.priority == 0 &&
      external_->all().empty()) {
    const uint64_t prompt = blocks_needed(true, n, 0);
    const CandidateIndex::Need need{prompt, {blocks_needed(false, n, job.ask.max_tokens), prompt}};
    const sched::Matches matches = index_.matches(job.tags, workers_.slots());
    auto few = candidates_.pick(
        workers_, matches, {.tokens = n, .block_tokens = options_.block_size}, need, loop_.now());
    if (few) {
      few->pool = pool_->index().match(job.tags, matches.longest());
      weigh_fetches(*few, matches, workers_, loop_.now());
      return std::move(*few);
    }
  }
  return view(job.tags, job.ask, &job);
}

void Conductor::decide(Job& job) {
  const uint64_t n = job.ask.tokens();
  cost_.advance(loop_.now());
  const sched::View v = short_view(job);
  sched::Decision& d = job.decision;
  d = sched::choose(v, {.tokens = n, .block_tokens = options_.block_size, .number = decided_},
                    options_.policy, cost_);
  sched::add_first_step(d, cost_);
  job.chosen_decode = d.decode < v.decode.size() ? v.decode[d.decode].name : "";
  d.verdict =
      sched::admit(d, n, promises(job), forecast_, workers_.live(false), cost_, loop_.now());
}

// The time spent waiting counts against the promise.
sched::AdmissionOptions Conductor::promises(const Job& job) const {
  sched::AdmissionOptions o = options_.admission;
  if (o.ttft_slo.count() > 0)
    o.ttft_slo = std::max(o.ttft_slo - (loop_.now() - job.arrived), Duration(1));
  return o;
}

// The prompt is computed: is there still a place in its decode worker's batch?
bool Conductor::decode_refuses(const Job& job) const {
  const Worker* const d = workers_.find(job.decode.node, job.decode.epoch);
  if (d == nullptr) return false;
  const sched::DecodeView node{
      .name = d->node, .requests = d->answering, .context_tokens = d->answering_tokens};
  return sched::admit_decode(node, job.ask.prompt.size(), options_.admission, cost_) !=
         sched::Verdict::kAccept;
}

sched::Decision Conductor::dry_run(const GenerateRequest& request) const {
  std::vector<uint64_t> tags;
  for (const BlockHash& h : chain_hashes(request.prompt, options_.block_size, request.cache_salt))
    tags.push_back(h.tag());
  const uint64_t n = request.tokens();
  sched::Decision d =
      sched::choose(view(tags, request, nullptr),
                    {.tokens = n, .block_tokens = options_.block_size, .number = decided_},
                    options_.policy, cost_);
  sched::add_first_step(d, cost_);
  d.verdict =
      sched::admit(d, n, options_.admission, forecast_, workers_.live(false), cost_, loop_.now());
  return d;
}

void Conductor::tick() {
  const Time now = loop_.now();
  // What nobody could do while this process stood still is not late.
  if (const Duration gap = now - std::exchange(ticks_.last, now); gap > kStall) {
    log_warn("conductor", "this process stood still for %.1f s: deadlines are extended",
             to_seconds(gap));
    for (const auto& [id, job] : jobs_)
      if (job->deadline != Time::max()) job->deadline += gap - kTick;
  }
  workers_.tick(now);
  external_->tick(now);
  index_.tick(now);
  pool_->tick();
  autoscaler_.tick(autoscaler_.deadline() <= now ? loads() : PoolLoads{}, now);
  std::vector<Id> late;
  for (const auto& [id, job] : jobs_)
    if (job->deadline <= now) late.push_back(id);
  for (const Id id : late)
    if (const auto it = jobs_.find(id); it != jobs_.end()) expired(*it->second);
  next_waiting();
}

}  // namespace mc::serve
