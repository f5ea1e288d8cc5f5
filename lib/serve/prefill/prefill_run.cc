#include "serve/prefill/prefill_run.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/pipeline/pooled_kv.h"

namespace mc::serve {
namespace {
// Timers of the loop are at most this late. Lateness within it does not delay the modelled time.
constexpr Duration kSlack = std::chrono::milliseconds(3);
}  // namespace

Result<PrefillQueue> PrefillRun::make_queue(const Engine& engine, const PrefillConfig& config) {
  return PrefillQueue::create(Timing{engine.spec(), config.time_scale}, config.chunk_tokens,
                              engine.block_tokens(), {config.order == "srpf", config.ageing});
}

Result<std::unique_ptr<PrefillRun>> PrefillRun::open(PrefillShared& shared, PrefillQueue queue,
                                                     RemotePrefixes& prefixes, StoreConnector* pool,
                                                     PipelineHead* pipeline) {
  std::unique_ptr<PrefillRun> self(
      new PrefillRun(shared, std::move(queue), prefixes, pool, pipeline));
  MC_TRY(
      self->sender_,
      make_sender(shared.config.connector, shared.config.layerwise,
                  {shared.loop, shared.xfer, shared.core->memory(), shared.shape, shared.transfer,
                   pool, [&host = shared.host](const std::string& at) { return host.peer(at); }}));
  return self;
}

PrefillRun::PrefillRun(PrefillShared& shared, PrefillQueue queue, RemotePrefixes& prefixes,
                       StoreConnector* pool, PipelineHead* pipeline)
    : shared_(shared),
      timing_{shared.engine.spec(), shared.config.time_scale},
      queue_(std::move(queue)),
      prefixes_(prefixes),
      pool_(pool),
      pipeline_(pipeline) {}

void PrefillRun::after(Time when, std::function<void()> task) {
  shared_.loop.at(when, [alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

// Leading blocks that a prompt can reuse, and those of them that are valid here.
size_t PrefillRun::reusable(const PrefillJob& job) const {
  return std::min<size_t>(reusable_blocks(job.prompt.size(), shared_.engine.block_tokens()),
                          job.hashes.size());
}

size_t PrefillRun::valid_blocks(const PrefillJob& job) const {
  const Tx& tx = *shared_.blocks().find(job.tx);
  return std::max(tx.hit, tx.valid);
}

// ---- the queue

void PrefillRun::add(const PrefillJobPtr& job, size_t here) {
  queue_.push(job->kv.request, job->prompt.size(), here * shared_.engine.block_tokens(),
              shared_.loop.now(), job->priority, {job->conductor, job->number});
  if (job->fetch == FetchState::kPeer) {  // what is predicted counts on what comes
    queue_.set_ready(job->kv.request, false);
    queue_.set_reused(job->kv.request,
                      std::max(here, job->peer_blocks) * shared_.engine.block_tokens());
  }
  if (pool_ != nullptr && shared_.config.pool_reuse != "never" && queue_.size() > 1)
    hint(*job, here);
  shared_.host.state_changed();
  advance();
}

// Hints the blocks that the job will fetch later: blocks on a disk can be in memory by then.
void PrefillRun::hint(const PrefillJob& job, size_t here) {
  const size_t most = reusable(job);
  if (here >= most) return;
  shared_.counters.hints.add(most - here);
  const StepScope scope(job.steps);
  pool_->prefetch({job.hashes.begin() + static_cast<std::ptrdiff_t>(here),
                   job.hashes.begin() + static_cast<std::ptrdiff_t>(most)});
}

// Chooses anew for each chunk. While the reused KV of one prompt is loaded, others compute.
void PrefillRun::advance() {
  while (!queue_.running() && (pipeline_ == nullptr || pipeline_->takes_chunk())) {
    const bool may_load = loads() < PrefillQueue::kLoadsMax;
    const PrefillItem* const head = queue_.head(shared_.loop.now(), may_load);
    if (head == nullptr) return;
    const PrefillJobPtr job = shared_.jobs.find(head->request);
    if (job->stage == PrefillStage::kQueued && !prepare(job)) continue;
    if (job->stage == PrefillStage::kLoaded)
      begin(job);
    else if (job->stage == PrefillStage::kComputing && computed_last_ != job->tx)
      catch_up(job);
    const PrefillItem* const still =
        queue_.head(shared_.loop.now(), may_load);  // it may have failed
    if (still != nullptr && still->request == job->kv.request)
      begin_chunk(job, *queue_.next(shared_.loop.now(), may_load));
  }
}

// Looks for reusable KV. False: it has to wait for some, its own or that of a prompt that begins
// like it.
bool PrefillRun::prepare(const PrefillJobPtr& job) {
  shared_.blocks().rematch(job->tx);  // blocks that earlier requests computed meanwhile
  shared_.place_blocks(*job);
  const size_t next = valid_blocks(*job), most = reusable(*job);
  const auto brings = [&](const PrefillJobPtr& other) {
    return brings_next(other->hashes, job->hashes, next, most);
  };
  if (std::ranges::any_of(shared_.jobs.fetching(), brings)) {
    job->fetch = FetchState::kAnother;
    queue_.set_ready(job->kv.request, false);
    return false;
  }
  job->stage = PrefillStage::kLoading;
  job->started = shared_.loop.clock().now();
  if (fetch(job)) {
    queue_.set_ready(job->kv.request, false);
    shared_.jobs.fetch(job, FetchState::kPool);
    return false;
  }
  job->stage = PrefillStage::kLoaded;
  job->loaded = job->started;
  queue_.set_loaded(job->kv.request);
  return true;
}

// Fetches the blocks after those cached here from the pool. Returns false if there are none.
bool PrefillRun::fetch(const PrefillJobPtr& job) {
  const uint64_t tokens = shared_.engine.block_tokens(), n = job->prompt.size();
  const size_t here = valid_blocks(*job), most = reusable(*job);
  if (pool_ == nullptr || shared_.config.pool_reuse == "never" || here >= most) return false;
  StoreConnector::Wanted wanted;
  for (size_t i = here; i < most; ++i) {
    wanted.hashes.push_back(job->hashes[i]);
    wanted.memory.emplace_back(job->kv.blocks[i], shared_.block_bytes());
  }
  wanted.choose = [this, here, n, tokens](std::span<const store::StoredPlace> places) -> size_t {
    if (shared_.config.pool_reuse == "always") return places.size();
    return pool_->rates().worth(places, shared_.block_bytes(), [&](size_t found) {
      const Duration saved =
          timing_.chunk(here * tokens, n, n) - timing_.chunk((here + found) * tokens, n, n);
      return to_seconds(saved) - to_seconds(timing_.load(found * tokens));
    });
  };
  const auto begun = std::make_shared<Time>(shared_.loop.clock().now());
  // A device would take whole blocks.
  if (shared_.config.pool_layers && pipeline_ == nullptr && !shared_.engine.device_kv()) {
    wanted.choose =
        [job, here, choose = std::move(wanted.choose)](std::span<const store::StoredPlace> places) {
          const size_t chosen = std::min(choose(places), places.size());
          if (chosen > 0) job->load = std::make_shared<LayerLoad>(here, here + chosen);
          return chosen;
        };
    wanted.layers_arrived = [this, job, begun](uint32_t layers) {
      shared_.trace("load", strf("layers up to %u", layers), *job, *begun,
                    shared_.loop.clock().now());
      *begun = shared_.loop.clock().now();
      if (job->load) job->load->arrived(layers);
      if (job->stage != PrefillStage::kLoading || job->failure) return;
      job->stage = PrefillStage::kLoaded;  // it may begin
      job->loaded = shared_.loop.clock().now();
      queue_.set_loaded(job->kv.request);
      queue_.set_ready(job->kv.request, true);
      advance();
    };
  }
  ++job->busy;
  job->fetch_span = job->span.child(job->started);
  const StepScope scope(telemetry::steps_below(job->fetch_span, shared_.loop.clock()));
  pool_->fetch(std::move(wanted), [this, job, here, begun](size_t fetched) {
    --job->busy;
    if (job->load) {
      if (fetched == 0 && job->stage >= PrefillStage::kComputing)  // it computes them as well
        job->done.cached_tokens = static_cast<uint32_t>(here * shared_.engine.block_tokens());
      job->load->over(fetched > 0);
    } else {
      shared_.trace("load", strf("%zu blocks of the pool", fetched), *job, *begun,
                    shared_.loop.clock().now());
    }
    if (pipeline_ != nullptr && fetched > 0)
      return pipeline_->fetch(job, here, fetched, [this, job](size_t got) { loaded(job, got); });
    loaded(job, fetched);
  });
  return true;
}

// KV came, or did not: who waited for it looks again.
void PrefillRun::arrived() {
  for (const auto& [tx, other] : shared_.jobs)
    if (other->fetch == FetchState::kAnother) {
      other->fetch = FetchState::kNone;
      queue_.set_ready(other->kv.request, true);
    }
}

size_t PrefillRun::loads() const {
  const auto of_pool = [](const PrefillJobPtr& job) { return job->fetch == FetchState::kPool; };
  return static_cast<size_t>(std::ranges::count_if(shared_.jobs.fetching(), of_pool));
}

// Another prefill worker's blocks came: of the prompt so many are valid now.
void PrefillRun::prefix_came(const PrefillJobPtr& job, size_t valid) {
  arrived();
  if (job->failure) {
    shared_.host.settle(job);
    return advance();
  }
  queue_.set_reused(job->kv.request,
                    std::max(valid, valid_blocks(*job)) * shared_.engine.block_tokens());
  queue_.set_ready(job->kv.request, true);
  advance();
}

void PrefillRun::loaded(const PrefillJobPtr& job, size_t fetched) {
  shared_.jobs.fetched(job);
  arrived();
  job->done.fetch_ms = to_ms(shared_.loop.clock().now() - job->started);
  if (job->failure) {
    shared_.host.settle(job);
    return advance();
  }
  if (fetched > 0) {
    const size_t here = valid_blocks(*job);
    job->published = std::max(job->published, here + fetched);  // the pool has them
    job->done.pool_tokens = static_cast<uint32_t>(fetched * shared_.engine.block_tokens());
    if (job->load == nullptr || job->stage < PrefillStage::kComputing) {
      shared_.blocks().computed(job->tx, here + fetched);
      prefixes_.changed();
    }
  }
  if (job->stage >= PrefillStage::kComputing) return advance();  // it began with the first layers
  job->load.reset();
  job->stage = PrefillStage::kLoaded;
  job->loaded = shared_.loop.clock().now();
  queue_.set_loaded(job->kv.request);
  queue_.set_ready(job->kv.request, true);
  advance();
}

// Its turn has come, and all reused KV is here: sends that. Its modelled load time delays the first
// layer.
void PrefillRun::begin(const PrefillJobPtr& job) {
  if (job->load == nullptr) {
    shared_.blocks().rematch(job->tx);  // others may have computed since it was loaded
    shared_.place_blocks(*job);
  }
  const Time now = shared_.loop.clock().now();
  const uint64_t tokens = shared_.engine.block_tokens();
  const size_t here = valid_blocks(*job);
  const size_t reused = job->load ? job->load->blocks() : here;
  job->stage = PrefillStage::kComputing;
  job->published = std::max(job->published, here);  // local, or published by others
  job->done.cached_tokens = static_cast<uint32_t>(reused * tokens);
  queue_.set_reused(job->kv.request, reused * tokens);
  if (sender_->granularity() != SendGranularity::kPrompt && job->load == nullptr)
    send(job, 0, reused, 0, shared_.block_bytes());
  if (now - shared_.core->free_at > kSlack) shared_.core->free_at = now;
  if (shared_.engine.modelled_time()) shared_.core->free_at += timing_.load(reused * tokens);
  job->computing = std::max(now, shared_.core->free_at);
  job->waited = now - job->loaded;
  if (pipeline_ != nullptr) pipeline_->begin(job, reused, [this, job] { deliver(job); });
}

// Others computed since its last chunk: takes what they have of its prompt, and sends that. The
// stages of a pipeline have had its blocks from the beginning, so there they stay.
void PrefillRun::catch_up(const PrefillJobPtr& job) {
  if (pipeline_ != nullptr || job->load != nullptr) return;
  const size_t before = valid_blocks(*job), here = shared_.blocks().rematch(job->tx);
  if (here == before) return;
  shared_.place_blocks(*job);
  const uint64_t tokens = shared_.engine.block_tokens();
  queue_.skip_to(job->kv.request, here * tokens);
  job->published = std::max(job->published, here);  // by those
  job->done.cached_tokens += static_cast<uint32_t>((here - before) * tokens);
  if (sender_->granularity() != SendGranularity::kPrompt)
    send(job, before, here, 0, shared_.block_bytes());
}

// The compute thread gets all layers of the chunk at once, so it never waits for the loop. The loop
// handles a layer once its modelled time has passed.
void PrefillRun::begin_chunk(const PrefillJobPtr& job, const PrefillChunk& chunk) {
  const uint32_t layers = shared_.engine.spec().layers;
  if (!chunk.first && computed_last_ != job->tx)
    job->paused += shared_.loop.clock().now() - job->computed;
  computed_last_ = job->tx;
  job->chunk = chunk;
  job->layers_left = layers;
  job->layers_sent = 0;
  ++job->busy;  // until chunk_computed
  if (const Time now = shared_.loop.clock().now(); now - shared_.core->free_at > kSlack)
    shared_.core->free_at = now;
  if (!shared_.engine.modelled_time()) job->chunk.predicted = {};
  const Time start =
      std::exchange(shared_.core->free_at, shared_.core->free_at + job->chunk.predicted);
  job->activations = std::make_shared<Activations>();
  for (uint32_t layer = 0; layer < layers; ++layer)
    compute(job, layer, start + job->chunk.predicted * (layer + 1) / layers, job->activations);
}

void PrefillRun::compute(const PrefillJobPtr& job, uint32_t layer, Time due,
                         const std::shared_ptr<Activations>& activations) {
  const ChunkView view{
      {job->prompt, job->parents, job->kv.blocks}, job->chunk.begin, job->chunk.end};
  const auto spent = std::make_shared<std::pair<Time, Time>>();
  const bool queued = shared_.core->submit(
      [this, view, layer, activations, spent, load = job->load] {
        const bool wanted =
            load == nullptr || load->await(shared_.engine, view, layer, *activations);
        spent->first = shared_.loop.clock().now();
        if (wanted) shared_.engine.prefill_layer(view, layer, *activations);
        spent->second = shared_.loop.clock().now();
      },
      [this, job, layer, due, spent] {
        shared_.trace("compute",
                      strf("layer %u of tokens %llu", layer,
                           static_cast<unsigned long long>(job->chunk.begin)),
                      *job, spent->first, std::max(spent->second, due));
        if (shared_.loop.clock().now() >= due) return layer_computed(job, layer);
        after(due, [this, job, layer] { layer_computed(job, layer); });
      });
  if (queued) return;
  shared_.host.fail_job(job, {Code::kBusy, "too much computing is queued: retry later"});
  layer_computed(job, layer);
}

// Layers that may be computed again, because their prefix is not verified yet, are sent later.
void PrefillRun::layer_computed(const PrefillJobPtr& job, uint32_t layer) {
  const bool stays = job->load == nullptr || job->load->settled();
  const bool sent = layer < job->layers_sent;  // with a later one that was due at the same time
  if (!job->failure && sender_->granularity() == SendGranularity::kLayer && stays && !sent) {
    const uint64_t tokens = shared_.engine.block_tokens(),
                   bytes = shared_.engine.spec().layer_bytes(tokens);
    const uint32_t first = std::exchange(job->layers_sent, layer + 1);
    send(job, job->chunk.begin / tokens, (job->chunk.end + tokens - 1) / tokens, first * bytes,
         (layer + 1 - first) * bytes);
  }
  if (--job->layers_left == 0) chunk_computed(job);
}

// This process computed the chunk, or gave it up because the request failed.
void PrefillRun::chunk_computed(const PrefillJobPtr& job) {
  --job->busy;
  queue_.finished();
  if (job->failure) {
    shared_.host.settle(job);
    return advance();
  }
  const uint64_t tokens = shared_.engine.block_tokens();
  shared_.counters.computed.add(job->chunk.end - job->chunk.begin);
  const size_t whole = job->chunk.last ? job->kv.blocks.size() : job->chunk.end / tokens;
  // Requests that reuse them compute after this chunk, in every stage.
  shared_.blocks().computed(job->tx, whole);
  prefixes_.changed();
  const auto load = std::exchange(job->load, nullptr);  // it is over
  if (load && sender_->granularity() != SendGranularity::kPrompt)
    send(job, 0, load->blocks(), 0, shared_.block_bytes());
  if (sender_->granularity() == SendGranularity::kChunk)
    send(job, job->chunk.begin / tokens, whole, 0, shared_.block_bytes());
  else if (sender_->granularity() == SendGranularity::kPrompt && job->chunk.last)
    send(job, 0, whole, 0, shared_.block_bytes());
  job->computed = shared_.loop.clock().now();
  if (pipeline_ != nullptr)
    pipeline_->send_chunk(job, [this, job](const PrefillChunk& c) { chunk_through(job, c); });
  else
    chunk_through(job, job->chunk);
  advance();
}

// All layers of the chunk are computed, in a pipeline by all stages.
void PrefillRun::chunk_through(const PrefillJobPtr& job, const PrefillChunk& chunk) {
  const uint64_t tokens = shared_.engine.block_tokens();
  publish(job, std::min<size_t>(chunk.end / tokens, job->hashes.size()));
  if (chunk.last) job->stage = PrefillStage::kSending;
  deliver(job);  // in a pipeline the last chunk may be sent before others
  shared_.host.state_changed();
}

void PrefillRun::publish(const PrefillJobPtr& job, size_t upto) {
  const bool fills =
      shared_.config.connector == Connector::kMulti ||
      (shared_.config.connector == Connector::kPool && job->deliver_to == DeliverTo::kThisProcess);
  if (pool_ == nullptr || !fills) return;
  if (pipeline_ != nullptr) pipeline_->put(*job, job->published, upto);
  const StepScope scope(job->steps);
  for (; job->published < upto; ++job->published) {
    const size_t i = job->published;
    store::PutConfig as;
    if (i < job->context_blocks) {
      as.cls = "context";
      as.ttl = job->keep;
    } else if (job->ephemeral) {
      as.cls = "ephemeral";
    }
    pool_->publish(job->hashes[i], shared_.blocks().find(job->tx)->blocks[i],
                   {job->kv.blocks[i], shared_.block_bytes()}, {}, as);
  }
}

// ---- delivering

void PrefillRun::send(const PrefillJobPtr& job, size_t first, size_t last, uint64_t at,
                      uint64_t bytes) {
  first = std::max(first, job->kv.there);
  if (first >= last || job->deliver_to == DeliverTo::kThisProcess) return;
  ++job->busy;
  job->done.kv_bytes += (last - first) * bytes;
  if (!job->transfer_span) job->transfer_span = job->span.child(shared_.loop.clock().now());
  const uint32_t layers =
      sender_->granularity() == SendGranularity::kPrompt ? shared_.engine.spec().layers : 1;
  const Time begun = shared_.loop.clock().now();
  sender_->send(
      std::shared_ptr<KvRoute>(job, &job->kv),
      {first, last, at, bytes, shared_.loop.clock().now() + shared_.config.send_timeout * layers},
      [this, job, begun, at, first](const Result<>& outcome) {
        --job->busy;
        shared_.trace("send",
                      strf("from block %zu at %llu", first, static_cast<unsigned long long>(at)),
                      *job, begun, shared_.loop.clock().now());
        if (!outcome)
          shared_.host.fail_job(job, {outcome.error().code, "sending KV to " + job->kv.decode +
                                                                ": " + outcome.error().what});
        if (job->failure) return shared_.host.settle(job);
        deliver(job);
      });
}

// Everything is computed and sent: the decode side may start.
void PrefillRun::deliver(const PrefillJobPtr& job) {
  if (job->stage != PrefillStage::kSending || job->busy > 0) return;
  if (job->deliver_to == DeliverTo::kThisProcess) {
    const auto adopted =
        shared_.own_decode.adopt(job->kv.request, job->kv.peer.guard.expected, job->kv.ids);
    return adopted ? delivered(job) : shared_.host.fail_job(job, adopted.error());
  }
  rpc::Client* decode = shared_.host.peer(job->kv.decode);
  if (decode == nullptr)
    return shared_.host.fail_job(
        job, {Code::kInvalid, "no decode worker at '" + escape(job->kv.decode) + "'"});
  const auto answered = [this, job](const Result<rpc::Empty>& reply) {
    if (!shared_.jobs.contains(*job) || job->stage != PrefillStage::kSending) return;
    if (reply) return delivered(job);
    shared_.host.fail_job(
        job, {reply.error().code, "decode worker " + job->kv.decode + ": " + reply.error().what});
  };
  const bool parts = pipeline_ != nullptr && shared_.config.connector == Connector::kPool;
  const auto stages = static_cast<uint32_t>(parts ? shared_.config.stages.size() + 1 : 0);
  decode->call(ready_message(job->kv, stages, job->pooled), shared_.config.peer_budget, answered,
               telemetry::to_wire(job->transfer_span.context()));
}

void PrefillRun::delivered(const PrefillJobPtr& job) {
  const Time now = shared_.loop.clock().now();
  shared_.trace("request", "wait", *job, job->queued, job->started);
  shared_.trace("request", "prefill", *job, job->started, now);
  job->stage = PrefillStage::kDelivered;
  shared_.blocks().await_commit(job->tx, now);
  PrefillDone& d = job->done;
  d.queue_ms = to_ms(job->started - job->queued + job->waited + job->paused);
  d.load_ms = to_ms(job->computing - job->started - job->waited);
  d.prefill_ms = to_ms(job->computed - job->computing - job->paused);
  d.transfer_ms = to_ms(now - job->computed);
  shared_.counters.prompts.add();
  shared_.counters.prompt_tokens.add(job->prompt.size());
  shared_.counters.queries.add(job->prompt.size());
  shared_.counters.hits.add(d.cached_tokens);
  shared_.counters.pool_tokens.add(d.pool_tokens);
  shared_.counters.peer_tokens.add(d.peer_tokens);
  shared_.counters.queue.observe(d.queue_ms / 1000);
  shared_.counters.load.observe(d.load_ms / 1000);
  shared_.counters.prefill.observe(d.prefill_ms / 1000);
  shared_.counters.transfer.observe(d.transfer_ms / 1000);
  job->end_spans(now);
  if (job->reply) (*job->reply)(d);
  job->reply.reset();
  if (job->committed_early) shared_.host.end_committed(job);
}

}  // namespace mc::serve
