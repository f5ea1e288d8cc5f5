#include "serve/worker/prefill_worker.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "serve/runtime/sequence.h"

namespace mc::serve {
namespace {

constexpr size_t kPeersMax = 1024;
constexpr size_t kJobsMax = 65536;
constexpr uint32_t kLeaseMsMax = 600'000;
constexpr Duration kPrefillTick = std::chrono::milliseconds(20);

PrefillCounters make_counters(Metrics& m) {
  return {
      m.counter("mc_engine_prompts_total", "prompts whose KV was delivered"),
      m.counter("vllm:prompt_tokens_total", "prompt tokens prefilled"),
      m.counter("vllm:prefix_cache_queries_total", "prompt tokens looked up in the cache"),
      m.counter("vllm:prefix_cache_hits_total", "prompt tokens reused from the cache or the pool"),
      m.counter("mc_engine_pool_tokens_total", "reused tokens fetched from the pool"),
      m.counter("mc_engine_failed_requests_total", "requests ended as errors"),
      m.counter("mc_engine_aborted_requests_total", "requests aborted by a conductor"),
      m.counter("mc_engine_computed_tokens_total", "prompt tokens computed"),
      m.counter("mc_engine_peer_tokens_total", "reused tokens fetched from another prefill worker"),
      m.counter("mc_engine_peer_fetch_failures_total",
                "fetches from prefill workers that failed or came too late"),
      m.counter("mc_engine_lent_blocks_total", "blocks pinned for another prefill worker to read"),
      m.counter("mc_engine_lent_expired_total", "pins for another prefill worker that expired"),
      m.counter("mc_engine_prefetch_hints_total",
                "blocks of queued prompts hinted to the pool before their fetch"),
      m.histogram("vllm:request_queue_time_seconds", "time from Prefill until execution"),
      m.histogram("mc_engine_load_seconds", "time to load reused KV"),
      m.histogram("vllm:request_prefill_time_seconds", "time to compute a prompt's KV"),
      m.histogram("mc_engine_transfer_wait_seconds",
                  "time from the last computed layer until the decode worker has all"),
      m.gauge("vllm:num_requests_running", "prompts being computed or delivered",
              {{"role", "prefill"}}),
      m.gauge("vllm:num_requests_waiting", "prompts waiting to be computed", {{"role", "prefill"}}),
      m.gauge("vllm:kv_cache_usage_perc", "share of the blocks in use")};
}

}  // namespace

Result<std::unique_ptr<PrefillWorker>> PrefillWorker::open(
    io::Loop& loop, xfer::Engine& transfer, rpc::Server& server, const Engine& engine,
    const PrefillConfig& config, Metrics& metrics, std::shared_ptr<WorkerCore> core) {
  const uint32_t tokens = engine.block_tokens();
  MC_TRY(PrefillQueue queue,
         PrefillQueue::create(Timing{engine.spec(), config.time_scale}, config.chunk_tokens, tokens,
                              {config.order == "srpf", config.ageing}));
  if (core == nullptr) {
    MC_TRY(core, WorkerCore::open(loop, transfer, engine, config.blocks, config.epoch));
  }
  auto self = std::unique_ptr<PrefillWorker>(new PrefillWorker(
      loop, transfer, server, engine, config, metrics, std::move(core), std::move(queue)));
  if (!config.store.master.empty()) {
    MC_TRY(self->pool_,
           StoreConnector::open(loop, transfer, config.store, engine.spec().pool_name(),
                                self->blocks_, metrics, self->shape_, 0, config.pool));
  }
  PrefillWorker* const raw = self.get();
  MC_TRY(self->sender_,
         make_sender(config.connector, config.layerwise,
                     {loop, transfer, self->core_->memory(), self->shape_, self->transfer_,
                      self->pool_.get(),
                      [raw](const std::string& address) { return raw->peer(address); }}));
  if (!config.stages.empty()) {
    MC_TRY_(self->open_pipeline(metrics));
  }
  return self;
}

PrefillWorker::PrefillWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server,
                             const Engine& engine, const PrefillConfig& config, Metrics& metrics,
                             std::shared_ptr<WorkerCore> core, PrefillQueue queue)
    : loop_(loop),
      engine_(engine),
      config_(config),
      timing_{engine.spec(), config.time_scale},
      core_(std::move(core)),
      block_bytes_(core_->block_bytes()),
      shape_(KvShape::of(engine_.spec(), engine_.block_tokens(), engine_.ranks())),
      blocks_(core_->blocks()),
      queue_(std::move(queue)),
      counters_(make_counters(metrics)),
      pinned_(transfer, core_, shape_.ranks, counters_.pinned_blocks,
              [this](auto wanted, size_t have) { return coming_blocks(wanted, have); }),
      transfer_(loop, transfer, metrics) {
  for (const char* state : {"free", "cached", "used"})
    block_gauges_[state] =
        &metrics.gauge("mc_engine_blocks", "KV blocks by state", {{"state", state}});
  metrics
      .gauge("vllm:cache_config_info", "the shape of the KV cache",
             {{"block_size", std::to_string(engine.block_tokens())},
              {"num_gpu_blocks", std::to_string(config.blocks)}})
      .set(1);
  server.on<TxAllocate>(
      [this](const TxAllocate& m, const rpc::Call& call) { return allocate(m, call.now); });
  server.on_later<Prefill>(
      [this](const Prefill& m, const rpc::Call& call, const rpc::Reply<PrefillDone>& reply) {
        prefill(m, call, reply);
      });
  server.on_later<AwaitPrefix>(
      [this](const AwaitPrefix& m, const rpc::Call& call, const rpc::Reply<PrefixMore>& reply) {
        pinned_.await(m, reply, call.now);
      });
  server.on<TxCommit>([this](const TxCommit& m, const rpc::Call&) { return commit(m); });
  server.on<Abort>([this](const Abort& m, const rpc::Call&) { return abort(m); });
  server.on<Snapshot>([this](const Snapshot& m, const rpc::Call&) -> Result<KvSnapshot> {
    KvSnapshot page = blocks_.snapshot(m.from, kSnapshotPage);
    page.epoch = config_.epoch;
    return page;
  });
  ticker_ = loop_.every(kPrefillTick, [this] { tick(); });
}

PrefillWorker::~PrefillWorker() {
  for (const auto& [tx, job] : jobs_)
    if (job->load) job->load->cancel();
  core_->close();
  loop_.cancel(ticker_);
}

void PrefillWorker::colocate(std::string control, Adopt adopt) {
  control_ = std::move(control);
  adopt_ = std::move(adopt);
}

void PrefillWorker::after(Time when, std::function<void()> task) {
  loop_.at(when, [alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void PrefillWorker::state_changed() {
  if (on_state_changed_) on_state_changed_();
}

// ---- messages

Result<> PrefillWorker::check(const TxAllocate& m) const {
  using ull = unsigned long long;
  const cost::ModelSpec& spec = engine_.spec();
  const uint64_t n = m.prompt.size(), tokens = engine_.block_tokens();
  if (draining_) return fail(Code::kBusy, "this prefill worker is draining: use another");
  if (!whole())
    return fail(Code::kBusy, "a stage of this pipeline does not answer: use another worker");
  if (m.request.empty() || m.request.size() > 1024)
    return fail(Code::kInvalid, "a request id of %zu bytes: want 1 to 1024", m.request.size());
  if (n == 0 || n > spec.context_max)
    return fail(Code::kInvalid, "a prompt of %llu tokens: want 1 to %llu", static_cast<ull>(n),
                static_cast<ull>(spec.context_max));
  const auto vocab = static_cast<int32_t>(spec.vocab);
  for (const int32_t t : m.prompt)
    if (t < 0 || t >= vocab)
      return fail(Code::kInvalid, "token %d is outside the vocabulary of %d", t, vocab);
  if (m.target.block_offsets.size() != (n + tokens - 1) / tokens && !is_own(m.target))
    return fail(
        Code::kInvalid,
        "the decode worker reserved %zu blocks for %llu tokens: want %llu of %llu tokens each",
        m.target.block_offsets.size(), static_cast<ull>(n),
        static_cast<ull>((n + tokens - 1) / tokens), static_cast<ull>(tokens));
  MC_TRY_(check_ranks(shape_, m.target.ranks));
  if (by_request_.contains(m.request))
    return fail(Code::kExists, "request '%s' is here already", escape(m.request).c_str());
  if (jobs_.size() >= kJobsMax)
    return fail(Code::kBusy, "%zu requests are here already: retry later", jobs_.size());
  return {};
}

// True if this process also decodes the request: it reserved no blocks, and decodes from these.
bool PrefillWorker::is_own(const Reservation& target) const {
  return adopt_ != nullptr && target.control == control_ && target.block_offsets.empty();
}

Result<TxAllocated> PrefillWorker::allocate(const TxAllocate& m, Time now) {
  // Queued on the way for an earlier process: its sender does not wait for this one.
  if (m.epoch != 0 && m.epoch != config_.epoch)
    return fail(Code::kStale, "request '%s' is for an earlier process of this worker",
                escape(m.request).c_str());
  if (m.pin_for_peer > 0) return pin_for_peer(m, now);
  MC_TRY_(check(m));
  auto job = std::make_shared<Job>();
  job->own = is_own(m.target);
  if (!job->own) {
    MC_TRY(job->kv.peer.segment, transfer_.segment(m.target.segment));
  }
  job->kv.peer.offsets = m.target.block_offsets;
  job->kv.ranks = m.target.ranks;
  job->kv.there = m.target.blocks_here;
  job->kv.peer.guard = {m.target.guard_offset, m.target.guard};
  job->kv.request = m.request;
  job->prompt = m.prompt;
  job->priority = m.priority;
  job->kv.decode = m.target.control;
  job->conductor = m.conductor;
  job->hashes = chain_hashes(m.prompt, engine_.block_tokens(), m.cache_salt);
  const uint64_t tokens = engine_.block_tokens();
  const size_t blocks = (m.prompt.size() + tokens - 1) / tokens;
  job->parents = parents_of(job->hashes, blocks, m.cache_salt);
  if (chain_ != nullptr) {
    job->target = m.target;
    job->cache_salt = m.cache_salt;
  }
  job->kv.keys = job->hashes;
  if (const size_t rest = m.prompt.size() % tokens; rest > 0)
    job->kv.keys.push_back(chain_hash(job->parents.back(), std::span(m.prompt).last(rest)));

  const BlockRequest want{m.request,
                          job->hashes,
                          m.prompt.size(),
                          blocks,
                          std::chrono::milliseconds(std::min(m.lease_ms, kLeaseMsMax)),
                          m.context_blocks,
                          std::chrono::milliseconds(m.keep_ms),
                          m.ephemeral};
  job->context_blocks = m.context_blocks;
  job->keep = want.keep;
  job->ephemeral = m.ephemeral;
  auto tx = blocks_.allocate(want, now);
  if (!tx && tx.error().code == Code::kNoSpace && pool_ != nullptr && pool_->shed())
    tx = blocks_.allocate(want, now);
  if (!tx) return fail(tx.error());
  job->tx = *tx;
  TxAllocated reply;
  reply.tx = job->tx;
  reply.local_blocks = static_cast<uint32_t>(blocks_.find(job->tx)->hit);
  reply.queued = static_cast<uint32_t>(queue_.size());
  reply.queue_ms =
      to_ms(queue_.queue_time(now, m.prompt.size(), reply.local_blocks * tokens, m.priority));
  by_request_.emplace(job->kv.request, job->tx);
  jobs_.emplace(job->tx, job);
  if (m.remote_prefix.tx != 0) fetch_remote_prefix(job, m.remote_prefix);
  return reply;
}

PrefillWorker::JobPtr PrefillWorker::find(TxId tx, const std::string& request) const {
  if (tx == 0) {
    const auto named = by_request_.find(request);
    if (named != by_request_.end()) tx = named->second;
  }
  const auto it = jobs_.find(tx);
  return it == jobs_.end() ? nullptr : it->second;
}

void PrefillWorker::prefill(const Prefill& m, const rpc::Call& call,
                            const rpc::Reply<PrefillDone>& reply) {
  const JobPtr job = find(m.tx, m.request);
  if (job == nullptr)
    return reply.error(
        {Code::kNotFound, strf("no transaction %llu of '%s': it was refused or "
                               "aborted, or its lease ran out: allocate again",
                               static_cast<unsigned long long>(m.tx), escape(m.request).c_str())});
  if (job->stage != Stage::kAllocated || job->failure)
    return reply.error(
        {Code::kExists, strf("request '%s' was started before", escape(job->kv.request).c_str())});
  const auto hits = blocks_.start(job->tx);
  if (!hits) return reply.error(hits.error());
  job->stage = Stage::kQueued;
  job->reply = reply;
  job->queued = loop_.clock().now();
  job->span = {config_.tracer, telemetry::from_wire(call.trace_id), job->queued};
  job->steps = telemetry::steps_below(job->span, loop_.clock());
  const size_t here = std::max(*hits, blocks_.find(job->tx)->valid);
  queue_.push(job->kv.request, job->prompt.size(), here * engine_.block_tokens(), loop_.now(),
              job->priority);
  if (std::find(fetching_.begin(), fetching_.end(), job) != fetching_.end())
    queue_.set_ready(job->kv.request, false);
  if (pool_ != nullptr && config_.pool_reuse != "never" && queue_.size() > 1) hint(*job, here);
  state_changed();
  advance();
}

// Hints the blocks that the job will fetch later: blocks on a disk can be in memory by then.
void PrefillWorker::hint(const Job& job, size_t here) {
  const size_t most = std::min<size_t>(reusable_blocks(job.prompt.size(), engine_.block_tokens()),
                                       job.hashes.size());
  if (here >= most) return;
  counters_.hints.add(most - here);
  const StepScope scope(job.steps);
  pool_->prefetch({job.hashes.begin() + static_cast<std::ptrdiff_t>(here),
                   job.hashes.begin() + static_cast<std::ptrdiff_t>(most)});
}

Result<TxCommitted> PrefillWorker::commit(const TxCommit& m) {
  if (pinned_.end(m.tx)) return TxCommitted{blocks_.events_last()};
  const JobPtr job = find(m.tx, m.request);
  if (job == nullptr)
    return fail(Code::kNotFound,
                "no transaction %llu of '%s': it was committed, aborted or expired",
                static_cast<unsigned long long>(m.tx), escape(m.request).c_str());
  if (job->failure)
    return fail(Code::kBusy, "request '%s' has failed", escape(job->kv.request).c_str());
  // The first token may overtake the answer of KvReady, and, of a prompt that the decode worker
  // computed itself, all of its KV here. Then it ends when nothing of it is busy.
  job->committed_early =
      job->stage != Stage::kDelivered && (job->busy > 0 || job->stage != Stage::kSending);
  if (job->committed_early) return TxCommitted{blocks_.events_last()};
  if (job->stage == Stage::kSending) delivered(job);
  MC_TRY_(blocks_.commit(job->tx));
  by_request_.erase(job->kv.request);
  jobs_.erase(job->tx);
  state_changed();
  return TxCommitted{blocks_.events_last()};
}

Result<rpc::Empty> PrefillWorker::abort(const Abort& m) {
  pinned_.end(m.request);
  auto it = by_request_.find(m.request);
  if (it == by_request_.end()) return rpc::Empty{};
  const JobPtr job = jobs_.at(it->second);
  if (!job->failure) counters_.aborted.add();
  job->aborted = true;
  fail_job(job, {Code::kUnavailable, "aborted: " + m.reason.substr(0, 1024)});
  return rpc::Empty{};
}

// ---- ending

void PrefillWorker::fail_job(const JobPtr& job, Error error) {
  if (job->failure) return;
  const bool waits = job->stage == Stage::kDelivered;  // only the commit is missing
  if (!waits && !job->aborted) {
    counters_.failed.add();
    log_warn("serve", "request %s: %s", escape(job->kv.request).c_str(), error.what.c_str());
  }
  queue_.remove(job->kv.request);
  job->failure = std::move(error);
  if (job->load) job->load->cancel();
  job->end_spans(loop_.clock().now());
  if (job->reply) job->reply->error(*job->failure);
  job->reply.reset();
  settle(job);
}

void PrefillWorker::settle(const JobPtr& job) {
  if (!job->failure || job->busy > 0 || !jobs_.contains(job->tx)) return;
  // A lost stage may still be writing. The conductor aborts the decode worker, which quarantines
  // its blocks for a while.
  if (job->stage != Stage::kDelivered && !job->lost) tell_failed(*job, job->failure->what);
  if (job->in_pipeline && whole() && job->stage < Stage::kSending)
    chain_->call<PipelineEnd>({0, job->kv.request}, [](const Result<rpc::Empty>&) {});
  blocks_.abort(job->tx);
  by_request_.erase(job->kv.request);
  jobs_.erase(job->tx);
  pinned_.changed(loop_.now());
  state_changed();
  advance();
}

void PrefillWorker::tell_failed(const Job& job, const std::string& reason) {
  rpc::Client* decode = peer(job.kv.decode);
  if (decode == nullptr) return;
  decode->call(KvFailed{job.kv.request, reason.substr(0, 4096), job.kv.peer.guard.expected},
               config_.peer_budget, [request = job.kv.request](const Result<rpc::Empty>& reply) {
                 if (!reply)
                   log_debug("serve",
                             "request %s: the decode worker did not acknowledge the failure: %s",
                             escape(request).c_str(), reply.error().what.c_str());
               });
}

rpc::Client* PrefillWorker::peer(const std::string& address) {
  auto it = peers_.find(address);
  if (it != peers_.end()) return it->second.get();
  if (peers_.size() >= kPeersMax)
    std::erase_if(peers_, [](const auto& p) { return p.second->in_flight() == 0; });
  auto client = rpc::Client::connect(loop_, address, rpc::Channel::kShm);
  if (!client) {
    log_warn("serve", "worker '%s': %s", escape(address).c_str(), client.error().what.c_str());
    return nullptr;
  }
  return peers_.emplace(address, std::move(*client)).first->second.get();
}

void PrefillWorker::tick() {
  for (const ExpiredTx& expired : blocks_.tick(loop_.now())) {
    if (pinned_.end(expired.tx)) counters_.pins_expired.add();
    auto it = jobs_.find(expired.tx);
    if (it == jobs_.end()) continue;
    fail_job(JobPtr(it->second), {Code::kTimeout, "the lease of the prefill transaction ran out"});
  }
  pinned_.changed(loop_.now());
}

// ---- state and metrics

void PrefillWorker::lookup(const std::vector<BlockHash>& hashes, std::function<void(size_t)> done) {
  size_t here = 0;
  while (here < hashes.size() && blocks_.lookup(hashes[here])) ++here;
  // A pipeline finds out at the fetch which pool blocks all stages have.
  if (here == hashes.size() || pool_ == nullptr || chain_ != nullptr) return done(here);
  pool_->match({hashes.begin() + static_cast<std::ptrdiff_t>(here), hashes.end()},
               [here, done = std::move(done)](size_t pooled) { done(here + pooled); });
}

WorkerLoad PrefillWorker::load(const std::string& conductor) const {
  WorkerLoad l;
  const BlockCounts counts = blocks_.counts();
  for (const auto& [tx, job] : jobs_) {
    l.waiting += job->stage == Stage::kQueued;
    l.running += job->stage > Stage::kQueued && job->stage < Stage::kDelivered;
  }
  l.blocks_total = counts.free + counts.cached + counts.used;
  l.blocks_free = counts.free + counts.cached;
  l.blocks_cached = counts.cached;
  l.queue_ms = to_ms(queue_.queue_time(loop_.now()));
  l.queued_tokens = queue_.queued_tokens();
  if (!conductor.empty())
    l.others_ms = to_ms(queue_.work_of([&](const std::string& request) {
      const JobPtr job = find(0, request);
      return job != nullptr && job->conductor != conductor;
    }));
  return l;
}

void PrefillWorker::update_metrics() {
  const WorkerLoad l = load();
  const BlockCounts c = blocks_.counts();
  block_gauges_["free"]->set(static_cast<double>(c.free));
  block_gauges_["cached"]->set(static_cast<double>(c.cached));
  block_gauges_["used"]->set(static_cast<double>(c.used));
  counters_.running.set(l.running);
  counters_.waiting.set(l.waiting);
  counters_.usage.set(static_cast<double>(c.used) / static_cast<double>(config_.blocks));
}

Json PrefillWorker::state() const {
  const WorkerLoad l = load();
  const BlockCounts c = blocks_.counts();
  return {{"role", "prefill"},
          {"epoch", config_.epoch},
          {"draining", draining_},
          {"requests", jobs_.size()},
          {"waiting", l.waiting},
          {"running", l.running},
          {"queue_ms", l.queue_ms},
          {"queued_tokens", l.queued_tokens},
          {"blocks", {{"free", c.free}, {"cached", c.cached}, {"used", c.used}}},
          {"transactions", blocks_.transactions()},
          {"lent", pinned_.size()},
          {"pipeline",
           {{"processes", chain_ ? chain_->processes() : 1},
            {"ready", whole()},
            {"chunks", in_pipeline_},
            {"trouble", chain_ ? chain_->trouble() : ""}}},
          {"events", blocks_.events_last()},
          {"pool",
           {{"queued", pool_ ? pool_->queued() : 0},
            {"putting", pool_ ? pool_->putting() : 0},
            {"error", pool_ ? pool_->last_error() : ""}}}};
}

}  // namespace mc::serve
