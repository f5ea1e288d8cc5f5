// Runs a prompt: loads reused KV, computes the rest, sends it, notifies the decode side.
// It computes chunk by chunk and layer by layer, and sends each layer while the next one computes.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/worker/pooled_kv.h"
#include "serve/worker/prefill_worker.h"

namespace mc::serve {
namespace {
// Timers of the loop are at most this late. Lateness within it does not delay the modelled time.
constexpr Duration kSlack = std::chrono::milliseconds(3);
constexpr size_t kLoadsMax = 8;  // prompts whose reused KV is loaded at a time
}  // namespace

// Chooses anew for each chunk. While the reused KV of one prompt is loaded, others compute.
void PrefillWorker::advance() {
  // One chunk for each stage and one in transit keep all stages busy.
  while (!queue_.running() &&
         (chain_ == nullptr || (chain_->ready() && in_pipeline_ <= chain_->processes()))) {
    const bool may_load = loading_.size() < kLoadsMax;
    const PrefillItem* const head = queue_.head(loop_.now(), may_load);
    if (head == nullptr) return;
    const JobPtr job = jobs_.at(by_request_.at(head->request));
    if (job->stage == Stage::kQueued && !prepare(job)) continue;
    if (job->stage == Stage::kLoaded) begin(job);
    const PrefillItem* const still = queue_.head(loop_.now(), may_load);  // it may have failed
    if (still != nullptr && still->request == job->kv.request)
      begin_chunk(job, *queue_.next(loop_.now(), may_load));
  }
}

// Looks for reusable KV. False: it has to wait for some, its own or that of a prompt that begins
// like it.
bool PrefillWorker::prepare(const JobPtr& job) {
  blocks_.rematch(job->tx);  // blocks that earlier requests computed meanwhile
  place_blocks(*job);
  const size_t next = std::max(blocks_.find(job->tx)->hit, blocks_.find(job->tx)->valid);
  const size_t most = std::min<size_t>(job->hashes.size(),
                                       reusable_blocks(job->prompt.size(), engine_.block_tokens()));
  const auto brings_next = [&](const JobPtr& other) {
    return next < std::min(most, other->hashes.size()) && job->hashes[next] == other->hashes[next];
  };
  job->waits_for_load = std::any_of(loading_.begin(), loading_.end(), brings_next) ||
                        std::any_of(fetching_.begin(), fetching_.end(), brings_next);
  if (job->waits_for_load) {
    queue_.set_ready(job->kv.request, false);
    return false;
  }
  job->stage = Stage::kLoading;
  job->started = loop_.clock().now();
  if (fetch(job)) {
    queue_.set_ready(job->kv.request, false);
    loading_.push_back(job);
    return false;
  }
  job->stage = Stage::kLoaded;
  queue_.set_loaded(job->kv.request);
  return true;
}

void PrefillWorker::place_blocks(Job& job) {
  job.kv.blocks.clear();
  job.kv.ids = blocks_.find(job.tx)->blocks;
  for (const BlockId id : job.kv.ids) job.kv.blocks.push_back(core_->block(id));
}

// Fetches the blocks after those cached here from the pool. Returns false if there are none.
bool PrefillWorker::fetch(const JobPtr& job) {
  const uint64_t tokens = engine_.block_tokens(), n = job->prompt.size();
  const Tx& tx = *blocks_.find(job->tx);
  const size_t here = std::max(tx.hit, tx.valid);
  const size_t most = std::min<size_t>(reusable_blocks(n, tokens), job->hashes.size());
  if (pool_ == nullptr || config_.pool_reuse == "never" || here >= most) return false;
  StoreConnector::Wanted wanted;
  for (size_t i = here; i < most; ++i) {
    wanted.hashes.push_back(job->hashes[i]);
    wanted.memory.emplace_back(job->kv.blocks[i], block_bytes_);
  }
  wanted.choose = [this, here, n, tokens](std::span<const store::StoredAt> places) -> size_t {
    if (config_.pool_reuse == "always") return places.size();
    return pool_->rates().worth(places, block_bytes_, [&](size_t found) {
      const Duration saved =
          timing_.chunk(here * tokens, n, n) - timing_.chunk((here + found) * tokens, n, n);
      return to_seconds(saved) - to_seconds(timing_.load(found * tokens));
    });
  };
  const auto begun = std::make_shared<Time>(loop_.clock().now());
  // A device would take whole blocks.
  if (config_.pool_layers && chain_ == nullptr && !engine_.device_kv()) {
    wanted.choose = [job, here,
                     choose = std::move(wanted.choose)](std::span<const store::StoredAt> places) {
      const size_t chosen = std::min(choose(places), places.size());
      if (chosen > 0) job->load = std::make_shared<LayerLoad>(here, here + chosen);
      return chosen;
    };
    wanted.layers_arrived = [this, job, begun](uint32_t layers) {
      trace("load", strf("layers up to %u", layers), *job, *begun, loop_.clock().now());
      *begun = loop_.clock().now();
      if (job->load) job->load->arrived(layers);
      if (job->stage != Stage::kLoading || job->failure) return;
      job->stage = Stage::kLoaded;  // it may begin
      queue_.set_loaded(job->kv.request);
      queue_.set_ready(job->kv.request, true);
      advance();
    };
  }
  ++job->busy;
  job->fetch = job->span.child(job->started);
  const StepScope scope(telemetry::steps_below(job->fetch, loop_.clock()));
  pool_->fetch(std::move(wanted), [this, job, here, begun](size_t fetched) {
    --job->busy;
    if (job->load) {
      if (fetched == 0 && job->stage >= Stage::kComputing)  // it computes them as well
        job->done.cached_tokens = static_cast<uint32_t>(here * engine_.block_tokens());
      job->load->over(fetched > 0);
    } else {
      trace("load", strf("%zu blocks of the pool", fetched), *job, *begun, loop_.clock().now());
    }
    if (chain_ != nullptr && fetched > 0) return fetch_in_pipeline(job, here, fetched);
    loaded(job, fetched);
  });
  return true;
}

// KV came, or did not: who waited for it looks again.
void PrefillWorker::arrived() {
  for (const auto& [tx, other] : jobs_)
    if (std::exchange(other->waits_for_load, false)) queue_.set_ready(other->kv.request, true);
}

void PrefillWorker::loaded(const JobPtr& job, size_t fetched) {
  std::erase(loading_, job);
  arrived();
  job->done.fetch_ms = to_ms(loop_.clock().now() - job->started);
  if (job->failure) {
    settle(job);
    return advance();
  }
  if (fetched > 0) {
    const size_t here = std::max(blocks_.find(job->tx)->hit, blocks_.find(job->tx)->valid);
    job->published = std::max(job->published, here + fetched);  // the pool has them
    job->done.pool_tokens = static_cast<uint32_t>(fetched * engine_.block_tokens());
    if (job->load == nullptr || job->stage < Stage::kComputing) {
      blocks_.computed(job->tx, here + fetched);
      pinned_.changed(loop_.now());
    }
  }
  if (job->stage >= Stage::kComputing) return advance();  // it began with the first layers
  job->load.reset();
  job->stage = Stage::kLoaded;
  queue_.set_loaded(job->kv.request);
  queue_.set_ready(job->kv.request, true);
  advance();
}

// Its turn has come, and all reused KV is here: sends that. Its modelled load time delays the first
// layer.
void PrefillWorker::begin(const JobPtr& job) {
  if (job->load == nullptr) {
    blocks_.rematch(job->tx);  // others may have computed since it was loaded
    place_blocks(*job);
  }
  const Time now = loop_.clock().now();
  const uint64_t tokens = engine_.block_tokens();
  const Tx& tx = *blocks_.find(job->tx);
  const size_t here = std::max(tx.hit, tx.valid);
  const size_t reused = job->load ? job->load->blocks() : here;
  job->stage = Stage::kComputing;
  job->published = std::max(job->published, here);  // local, or published by others
  job->done.cached_tokens = static_cast<uint32_t>(reused * tokens);
  queue_.set_reused(job->kv.request, reused * tokens);
  if (sender_->granularity() != SendGranularity::kPrompt && job->load == nullptr)
    send(job, 0, reused, 0, block_bytes_);
  if (now - core_->free_at > kSlack) core_->free_at = now;
  if (engine_.modelled_time()) core_->free_at += timing_.load(reused * tokens);
  job->computing = std::max(now, core_->free_at);
  if (chain_ != nullptr) begin_in_pipeline(job, reused);
}

// The compute thread gets all layers of the chunk at once, so it never waits for the loop. The loop
// handles a layer once its modelled time has passed.
void PrefillWorker::begin_chunk(const JobPtr& job, const PrefillChunk& chunk) {
  const uint32_t layers = engine_.spec().layers;
  job->chunk = chunk;
  job->layers_left = layers;
  job->layers_sent = 0;
  ++job->busy;  // until chunk_computed
  if (const Time now = loop_.clock().now(); now - core_->free_at > kSlack) core_->free_at = now;
  if (!engine_.modelled_time()) job->chunk.predicted = {};
  const Time start = std::exchange(core_->free_at, core_->free_at + job->chunk.predicted);
  job->activations = std::make_shared<Activations>();
  for (uint32_t layer = 0; layer < layers; ++layer)
    compute(job, layer, start + job->chunk.predicted * (layer + 1) / layers, job->activations);
}

void PrefillWorker::compute(const JobPtr& job, uint32_t layer, Time due,
                            const std::shared_ptr<Activations>& activations) {
  const ChunkView view{
      {job->prompt, job->parents, job->kv.blocks}, job->chunk.begin, job->chunk.end};
  const auto spent = std::make_shared<std::pair<Time, Time>>();
  const bool queued = core_->submit(
      [this, view, layer, activations, spent, load = job->load] {
        if (load) load->await(engine_, view, layer, *activations);
        spent->first = loop_.clock().now();
        engine_.prefill_layer(view, layer, *activations);
        spent->second = loop_.clock().now();
      },
      [this, job, layer, due, spent] {
        trace("compute",
              strf("layer %u of tokens %llu", layer,
                   static_cast<unsigned long long>(job->chunk.begin)),
              *job, spent->first, std::max(spent->second, due));
        if (loop_.clock().now() >= due) return layer_computed(job, layer);
        after(due, [this, job, layer] { layer_computed(job, layer); });
      });
  if (queued) return;
  fail_job(job, {Code::kBusy, "too much computing is queued: retry later"});
  layer_computed(job, layer);
}

// Layers that may be computed again, because their prefix is not verified yet, are sent later.
void PrefillWorker::layer_computed(const JobPtr& job, uint32_t layer) {
  const bool stays = job->load == nullptr || job->load->settled();
  const bool sent = layer < job->layers_sent;  // with a later one that was due at the same time
  if (!job->failure && sender_->granularity() == SendGranularity::kLayer && stays && !sent) {
    const uint64_t tokens = engine_.block_tokens(), bytes = engine_.spec().layer_bytes(tokens);
    const uint32_t first = std::exchange(job->layers_sent, layer + 1);
    send(job, job->chunk.begin / tokens, (job->chunk.end + tokens - 1) / tokens, first * bytes,
         (layer + 1 - first) * bytes);
  }
  if (--job->layers_left == 0) chunk_computed(job);
}

// This process computed the chunk, or gave it up because the request failed.
void PrefillWorker::chunk_computed(const JobPtr& job) {
  --job->busy;
  queue_.finished();
  if (job->failure) {
    settle(job);
    return advance();
  }
  const uint64_t tokens = engine_.block_tokens();
  counters_.computed.add(job->chunk.end - job->chunk.begin);
  const size_t whole = job->chunk.last ? job->kv.blocks.size() : job->chunk.end / tokens;
  // Requests that reuse them compute after this chunk, in every stage.
  blocks_.computed(job->tx, whole);
  pinned_.changed(loop_.now());
  const auto load = std::exchange(job->load, nullptr);  // it is over
  if (load && sender_->granularity() != SendGranularity::kPrompt)
    send(job, 0, load->blocks(), 0, block_bytes_);
  if (sender_->granularity() == SendGranularity::kChunk)
    send(job, job->chunk.begin / tokens, whole, 0, block_bytes_);
  else if (sender_->granularity() == SendGranularity::kPrompt && job->chunk.last)
    send(job, 0, whole, 0, block_bytes_);
  job->computed = loop_.clock().now();
  if (chain_ != nullptr)
    chunk_to_pipeline(job);
  else
    chunk_through(job, job->chunk);
  advance();
}

// All layers of the chunk are computed, in a pipeline by all stages.
void PrefillWorker::chunk_through(const JobPtr& job, const PrefillChunk& chunk) {
  const uint64_t tokens = engine_.block_tokens();
  publish(job, std::min<size_t>(chunk.end / tokens, job->hashes.size()));
  if (chunk.last) job->stage = Stage::kSending;
  deliver(job);  // in a pipeline the last chunk may be sent before others
  state_changed();
}

void PrefillWorker::publish(const JobPtr& job, size_t upto) {
  const bool fills =
      config_.connector == Connector::kMulti || (config_.connector == Connector::kPool && job->own);
  if (pool_ == nullptr || !fills) return;
  if (chain_ != nullptr) put_in_pipeline(*job, job->published, upto);
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
    pool_->publish(job->hashes[i], blocks_.find(job->tx)->blocks[i],
                   {job->kv.blocks[i], block_bytes_}, {}, as);
  }
}

// ---- delivering

void PrefillWorker::send(const JobPtr& job, size_t first, size_t last, uint64_t at,
                         uint64_t bytes) {
  first = std::max(first, job->kv.there);
  if (first >= last || job->own) return;
  ++job->busy;
  job->done.kv_bytes += (last - first) * bytes;
  if (!job->transfer) job->transfer = job->span.child(loop_.clock().now());
  const uint32_t layers =
      sender_->granularity() == SendGranularity::kPrompt ? engine_.spec().layers : 1;
  const Time begun = loop_.clock().now();
  sender_->send(std::shared_ptr<KvRoute>(job, &job->kv),
                {first, last, at, bytes, loop_.clock().now() + config_.send_timeout * layers},
                [this, job, begun, at, first](const Result<>& outcome) {
                  --job->busy;
                  trace("send",
                        strf("from block %zu at %llu", first, static_cast<unsigned long long>(at)),
                        *job, begun, loop_.clock().now());
                  if (!outcome)
                    fail_job(job, {outcome.error().code, "sending KV to " + job->kv.decode + ": " +
                                                             outcome.error().what});
                  if (job->failure) return settle(job);
                  deliver(job);
                });
}

// Everything is computed and sent: the decode side may start.
void PrefillWorker::deliver(const JobPtr& job) {
  if (job->stage != Stage::kSending || job->busy > 0) return;
  if (job->own) {
    const auto adopted = adopt_(job->kv.request, job->kv.peer.guard.expected, job->kv.ids);
    return adopted ? delivered(job) : fail_job(job, adopted.error());
  }
  rpc::Client* decode = peer(job->kv.decode);
  if (decode == nullptr)
    return fail_job(job, {Code::kInvalid, "no decode worker at '" + escape(job->kv.decode) + "'"});
  const auto answered = [this, job](const Result<rpc::Empty>& reply) {
    if (jobs_.find(job->tx) == jobs_.end() || job->stage != Stage::kSending) return;
    if (reply) return delivered(job);
    fail_job(job,
             {reply.error().code, "decode worker " + job->kv.decode + ": " + reply.error().what});
  };
  const bool parts = chain_ != nullptr && config_.connector == Connector::kPool;
  const auto stages = static_cast<uint32_t>(parts ? config_.stages.size() + 1 : 0);
  decode->call(ready_message(job->kv, stages, job->pooled), config_.peer_budget, answered,
               telemetry::to_wire(job->transfer.context()));
}

void PrefillWorker::trace(const char* track, const std::string& name, const Job& job, Time begin,
                          Time end) {
  if (config_.trace != nullptr) config_.trace->span(track, name, begin, end, job.kv.request);
}

// Records the spans of a request that is delivered, or has failed.
void PrefillWorker::Job::end_spans(Time now) {
  if (!span) return;
  const std::string why = failure ? failure->what : "";
  const bool began = started != Time{}, computes = computing != Time{},
             has_all = computed != Time{};
  span.step("queue", queued, began ? started : now);
  if (!fetch && began && done.peer_tokens > 0) fetch = span.child(started);
  fetch.end("fetch", computes ? computing : now,
            {{"mc.pool_tokens", int64_t{done.pool_tokens}},
             {"mc.peer_tokens", int64_t{done.peer_tokens}}});
  if (computes)
    span.step("compute", computing, has_all ? computed : now,
              {{"mc.computed_tokens", static_cast<int64_t>(prompt.size() - done.cached_tokens)}});
  transfer.end("transfer", now,
               {{"mc.to", kv.decode}, {"mc.bytes", static_cast<int64_t>(done.kv_bytes)}}, why,
               telemetry::SpanKind::kClient);
  span.end("prefill", now,
           {{"mc.request", kv.request},
            {"mc.prompt_tokens", static_cast<int64_t>(prompt.size())},
            {"mc.cached_tokens", int64_t{done.cached_tokens}}},
           why, telemetry::SpanKind::kServer);
}

void PrefillWorker::delivered(const JobPtr& job) {
  const Time now = loop_.clock().now();
  trace("request", "wait", *job, job->queued, job->started);
  trace("request", "prefill", *job, job->started, now);
  job->stage = Stage::kDelivered;
  blocks_.await_commit(job->tx, now);
  PrefillDone& d = job->done;
  d.queue_ms = to_ms(job->started - job->queued);
  d.load_ms = to_ms(job->computing - job->started);
  d.prefill_ms = to_ms(job->computed - job->computing);
  d.transfer_ms = to_ms(now - job->computed);
  counters_.prompts.add();
  counters_.prompt_tokens.add(job->prompt.size());
  counters_.queries.add(job->prompt.size());
  counters_.hits.add(d.cached_tokens);
  counters_.pool_tokens.add(d.pool_tokens);
  counters_.peer_tokens.add(d.peer_tokens);
  counters_.queue.observe(d.queue_ms / 1000);
  counters_.load.observe(d.load_ms / 1000);
  counters_.prefill.observe(d.prefill_ms / 1000);
  counters_.transfer.observe(d.transfer_ms / 1000);
  job->end_spans(now);
  if (job->reply) (*job->reply)(d);
  job->reply.reset();
  if (job->committed_early) (void)commit({job->tx, job->kv.request});
}

}  // namespace mc::serve
