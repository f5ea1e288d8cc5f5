#include "serve/prefill/prefill_worker.h"

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

}  // namespace

Result<std::unique_ptr<PrefillWorker>> PrefillWorker::open(
    io::Loop& loop, xfer::Engine& transfer, rpc::Server& server, const Engine& engine,
    const PrefillConfig& config, Metrics& metrics, std::shared_ptr<WorkerCore> core) {
  MC_TRY(PrefillQueue queue, PrefillRun::make_queue(engine, config));
  if (core == nullptr) {
    MC_TRY(core, WorkerCore::open(loop, transfer, engine, config.blocks, config.epoch));
  }
  auto self = std::unique_ptr<PrefillWorker>(
      new PrefillWorker(loop, transfer, server, engine, config, metrics, std::move(core)));
  PrefillShared& shared = self->shared_;
  if (!config.store.master.empty()) {
    MC_TRY(self->pool_,
           StoreConnector::open(loop, transfer, config.store, engine.spec().pool_name(),
                                shared.blocks(), metrics, shared.shape, 0, config.pool));
    self->pool_->assume(engine.spec().cost.transfer_bytes_per_s);
  }
  if (!config.stages.empty()) {
    MC_TRY(self->pipeline_, PipelineHead::open(shared, metrics));
  }
  MC_TRY(self->run_, PrefillRun::open(shared, std::move(queue), self->prefixes_, self->pool_.get(),
                                      self->pipeline_.get()));
  return self;
}

PrefillWorker::PrefillWorker(io::Loop& loop, xfer::Engine& transfer, rpc::Server& server,
                             const Engine& engine, const PrefillConfig& config, Metrics& metrics,
                             std::shared_ptr<WorkerCore> core)
    : shared_(loop, transfer, engine, config, metrics, std::move(core), *this), prefixes_(shared_) {
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
        prefixes_.await(m, reply, call.now);
      });
  server.on<TxCommit>([this](const TxCommit& m, const rpc::Call&) { return commit(m); });
  server.on<Abort>([this](const Abort& m, const rpc::Call&) { return abort(m); });
  server.on<Snapshot>([this](const Snapshot& m, const rpc::Call&) -> Result<KvSnapshot> {
    KvSnapshot page = shared_.blocks().snapshot(m.from, kSnapshotPage);
    page.epoch = shared_.config.epoch;
    return page;
  });
  ticker_ = shared_.loop.every(kPrefillTick, [this] { tick(); });
}

PrefillWorker::~PrefillWorker() {
  for (const auto& [tx, job] : shared_.jobs)
    if (job->load) job->load->cancel();
  shared_.core->close();
  shared_.loop.cancel(ticker_);
}

void PrefillWorker::colocate(std::string control, OwnDecode::Adopt adopt) {
  shared_.own_decode = {std::move(control), std::move(adopt)};
}

void PrefillWorker::state_changed() {
  if (on_state_changed_) on_state_changed_();
}

// ---- messages

Result<> PrefillWorker::check(const TxAllocate& m) const {
  using ull = unsigned long long;
  const cost::ModelSpec& spec = shared_.engine.spec();
  const uint64_t n = m.prompt.size(), tokens = shared_.engine.block_tokens();
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
  if (m.target.block_offsets.size() != (n + tokens - 1) / tokens &&
      !shared_.own_decode.is(m.target))
    return fail(
        Code::kInvalid,
        "the decode worker reserved %zu blocks for %llu tokens: want %llu of %llu tokens each",
        m.target.block_offsets.size(), static_cast<ull>(n),
        static_cast<ull>((n + tokens - 1) / tokens), static_cast<ull>(tokens));
  MC_TRY_(check_ranks(shared_.shape, m.target.ranks));
  if (shared_.jobs.find(m.request) != nullptr)
    return fail(Code::kExists, "request '%s' is here already", escape(m.request).c_str());
  if (shared_.jobs.size() >= kJobsMax)
    return fail(Code::kBusy, "%zu requests are here already: retry later", shared_.jobs.size());
  return {};
}

Result<TxAllocated> PrefillWorker::allocate(const TxAllocate& m, Time now) {
  // Queued on the way for an earlier process: its sender does not wait for this one.
  if (m.epoch != 0 && m.epoch != shared_.config.epoch)
    return fail(Code::kStale, "request '%s' is for an earlier process of this worker",
                escape(m.request).c_str());
  if (m.pin_for_peer > 0) {
    if (draining_) return fail(Code::kBusy, "this prefill worker is draining: compute the prefix");
    return prefixes_.pin(m, now);
  }
  MC_TRY_(check(m));
  auto job = std::make_shared<PrefillJob>();
  if (shared_.own_decode.is(m.target)) {
    job->deliver_to = DeliverTo::kThisProcess;
  } else {
    MC_TRY(job->kv.peer.segment, shared_.transfer.segment(m.target.segment));
  }
  job->kv.peer.offsets = m.target.block_offsets;
  job->kv.ranks = m.target.ranks;
  job->kv.there = m.target.blocks_here;
  job->kv.peer.guard = {m.target.guard_offset, m.target.guard};
  job->kv.request = m.request;
  job->prompt = m.prompt;
  job->priority = m.priority;
  job->number = m.number;
  job->kv.decode = m.target.control;
  job->conductor = m.conductor;
  job->hashes = chain_hashes(m.prompt, shared_.engine.block_tokens(), m.cache_salt);
  const uint64_t tokens = shared_.engine.block_tokens();
  const size_t blocks = (m.prompt.size() + tokens - 1) / tokens;
  job->parents = parents_of(job->hashes, blocks, m.cache_salt);
  if (pipeline_ != nullptr) {
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
  auto tx = shared_.blocks().allocate(want, now);
  if (!tx && tx.error().code == Code::kNoSpace && pool_ != nullptr && pool_->shed())
    tx = shared_.blocks().allocate(want, now);
  if (!tx) return fail(tx.error());
  job->tx = *tx;
  TxAllocated reply;
  reply.tx = job->tx;
  reply.local_blocks = static_cast<uint32_t>(shared_.blocks().find(job->tx)->hit);
  reply.queued = static_cast<uint32_t>(run_->queue().size());
  reply.queue_ms = to_ms(run_->queue().queue_time(now, m.prompt.size(), reply.local_blocks * tokens,
                                                  m.priority, {m.conductor, m.number}));
  shared_.jobs.add(job);
  if (m.remote_prefix.tx != 0)
    prefixes_.fetch(job, m.remote_prefix,
                    [this, job](size_t valid) { run_->prefix_came(job, valid); });
  return reply;
}

void PrefillWorker::prefill(const Prefill& m, const rpc::Call& call,
                            const rpc::Reply<PrefillDone>& reply) {
  const PrefillJobPtr job = m.tx == 0 ? shared_.jobs.find(m.request) : shared_.jobs.find(m.tx);
  if (job == nullptr)
    return reply.error(
        {Code::kNotFound, strf("no transaction %llu of '%s': it was refused or "
                               "aborted, or its lease ran out: allocate again",
                               static_cast<unsigned long long>(m.tx), escape(m.request).c_str())});
  if (job->stage != PrefillStage::kAllocated || job->failure)
    return reply.error(
        {Code::kExists, strf("request '%s' was started before", escape(job->kv.request).c_str())});
  const auto hits = shared_.blocks().start(job->tx);
  if (!hits) return reply.error(hits.error());
  job->stage = PrefillStage::kQueued;
  job->reply = reply;
  job->queued = shared_.loop.clock().now();
  job->span = {shared_.config.tracer, telemetry::from_wire(call.trace_id), job->queued};
  job->steps = telemetry::steps_below(job->span, shared_.loop.clock());
  run_->add(job, std::max(*hits, shared_.blocks().find(job->tx)->valid));
}

Result<TxCommitted> PrefillWorker::commit(const TxCommit& m) {
  if (prefixes_.end(m.tx)) return TxCommitted{shared_.blocks().events_last()};
  const PrefillJobPtr job = m.tx == 0 ? shared_.jobs.find(m.request) : shared_.jobs.find(m.tx);
  if (job == nullptr)
    return fail(Code::kNotFound,
                "no transaction %llu of '%s': it was committed, aborted or expired",
                static_cast<unsigned long long>(m.tx), escape(m.request).c_str());
  if (job->failure)
    return fail(Code::kBusy, "request '%s' has failed", escape(job->kv.request).c_str());
  // The first token may overtake the answer of KvReady, and, of a prompt that the decode worker
  // computed itself, all of its KV here. Then it ends when nothing of it is busy.
  job->committed_early = job->stage != PrefillStage::kDelivered &&
                         (job->busy > 0 || job->stage != PrefillStage::kSending);
  if (job->committed_early) return TxCommitted{shared_.blocks().events_last()};
  if (job->stage == PrefillStage::kSending) run_->delivered(job);
  MC_TRY_(shared_.blocks().commit(job->tx));
  shared_.jobs.erase(*job);
  state_changed();
  return TxCommitted{shared_.blocks().events_last()};
}

Result<rpc::Empty> PrefillWorker::abort(const Abort& m) {
  prefixes_.end(m.request);
  const PrefillJobPtr job = shared_.jobs.find(m.request);
  if (job == nullptr || job->failure) return rpc::Empty{};
  shared_.counters.aborted.add();
  job->cause = EndCause::kAbort;
  fail_job(job, {Code::kUnavailable, "aborted: " + m.reason.substr(0, 1024)});
  return rpc::Empty{};
}

// ---- ending

void PrefillWorker::fail_job(const PrefillJobPtr& job, Error error) {
  if (job->failure) return;
  const bool waits = job->stage == PrefillStage::kDelivered;  // only the commit is missing
  if (!waits && job->cause != EndCause::kAbort) {
    shared_.counters.failed.add();
    log_warn("serve", "request %s: %s", escape(job->kv.request).c_str(), error.what.c_str());
  }
  run_->remove(*job);
  job->failure = std::move(error);
  if (job->load) job->load->cancel();
  job->end_spans(shared_.loop.clock().now());
  if (job->reply) job->reply->error(*job->failure);
  job->reply.reset();
  settle(job);
}

void PrefillWorker::settle(const PrefillJobPtr& job) {
  if (!job->failure || job->busy > 0 || !shared_.jobs.contains(*job)) return;
  // A lost stage may still be writing. The conductor aborts the decode worker, which quarantines
  // its blocks for a while.
  if (job->stage != PrefillStage::kDelivered && job->pipeline != PipelinePart::kLost)
    tell_failed(*job, job->failure->what);
  if (pipeline_ != nullptr) pipeline_->end(*job);
  shared_.blocks().abort(job->tx);
  shared_.jobs.erase(*job);
  prefixes_.changed();
  state_changed();
  run_->advance();
}

void PrefillWorker::tell_failed(const PrefillJob& job, const std::string& reason) {
  rpc::Client* decode = peer(job.kv.decode);
  if (decode == nullptr) return;
  decode->call(
      KvFailed{job.kv.request, reason.substr(0, 4096), job.kv.peer.guard.expected},
      shared_.config.peer_budget, [request = job.kv.request](const Result<rpc::Empty>& reply) {
        if (!reply)
          log_debug("serve", "request %s: the decode worker did not acknowledge the failure: %s",
                    escape(request).c_str(), reply.error().what.c_str());
      });
}

rpc::Client* PrefillWorker::peer(const std::string& address) {
  auto it = peers_.find(address);
  if (it != peers_.end()) return it->second.get();
  if (peers_.size() >= kPeersMax)
    std::erase_if(peers_, [](const auto& p) { return p.second->in_flight() == 0; });
  auto client = rpc::Client::connect(shared_.loop, address, rpc::Channel::kShm);
  if (!client) {
    log_warn("serve", "worker '%s': %s", escape(address).c_str(), client.error().what.c_str());
    return nullptr;
  }
  return peers_.emplace(address, std::move(*client)).first->second.get();
}

void PrefillWorker::tick() {
  for (const ExpiredTx& expired : shared_.blocks().tick(shared_.loop.now())) {
    if (prefixes_.end(expired.tx)) shared_.counters.pins_expired.add();
    if (const PrefillJobPtr job = shared_.jobs.find(expired.tx))
      fail_job(job, {Code::kTimeout, "the lease of the prefill transaction ran out"});
  }
  prefixes_.changed();
}

// ---- state and metrics

void PrefillWorker::lookup(const std::vector<BlockHash>& hashes, std::function<void(size_t)> done) {
  size_t here = 0;
  while (here < hashes.size() && shared_.blocks().lookup(hashes[here])) ++here;
  // A pipeline finds out at the fetch which pool blocks all stages have.
  if (here == hashes.size() || pool_ == nullptr || pipeline_ != nullptr) return done(here);
  pool_->match({hashes.begin() + static_cast<std::ptrdiff_t>(here), hashes.end()},
               [here, done = std::move(done)](size_t pooled) { done(here + pooled); });
}

WorkerLoad PrefillWorker::load(const std::string& conductor) const {
  WorkerLoad l;
  const BlockCounts counts = shared_.blocks().counts();
  for (const auto& [tx, job] : shared_.jobs) {
    l.waiting += job->stage == PrefillStage::kQueued;
    l.running += job->stage > PrefillStage::kQueued && job->stage < PrefillStage::kDelivered;
  }
  l.blocks_total = counts.free + counts.cached + counts.used;
  l.blocks_free = counts.free + counts.cached;
  l.blocks_cached = counts.cached;
  l.queue_ms = to_ms(run_->queue().queue_time(shared_.loop.now()));
  l.queued_tokens = run_->queue().queued_tokens();
  if (!conductor.empty())
    l.others_ms = to_ms(run_->queue().work_of([&](const std::string& request) {
      const PrefillJobPtr job = shared_.jobs.find(request);
      return job != nullptr && job->conductor != conductor;
    }));
  return l;
}

void PrefillWorker::update_metrics() {
  const WorkerLoad l = load();
  const BlockCounts c = shared_.blocks().counts();
  shared_.counters.free.set(static_cast<double>(c.free));
  shared_.counters.cached.set(static_cast<double>(c.cached));
  shared_.counters.used.set(static_cast<double>(c.used));
  shared_.counters.running.set(l.running);
  shared_.counters.waiting.set(l.waiting);
  shared_.counters.usage.set(static_cast<double>(c.used) /
                             static_cast<double>(shared_.config.blocks));
}

Json PrefillWorker::state() const {
  const WorkerLoad l = load();
  const BlockCounts c = shared_.blocks().counts();
  return {{"role", "prefill"},
          {"epoch", shared_.config.epoch},
          {"draining", draining_},
          {"requests", shared_.jobs.size()},
          {"waiting", l.waiting},
          {"running", l.running},
          {"queue_ms", l.queue_ms},
          {"queued_tokens", l.queued_tokens},
          {"blocks", {{"free", c.free}, {"cached", c.cached}, {"used", c.used}}},
          {"transactions", shared_.blocks().transactions()},
          {"lent", prefixes_.pinned()},
          {"pipeline",
           pipeline_ ? pipeline_->state()
                     : Json{{"processes", 1}, {"ready", true}, {"chunks", 0}, {"trouble", ""}}},
          {"events", shared_.blocks().events_last()},
          {"pool",
           {{"queued", pool_ ? pool_->queued() : 0},
            {"putting", pool_ ? pool_->putting() : 0},
            {"error", pool_ ? pool_->last_error() : ""}}}};
}

}  // namespace mc::serve
