#include "serve/prefill/prefill_pipeline.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "serve/pipeline/pipeline_worker.h"

namespace mc::serve {

Result<std::unique_ptr<PipelineHead>> PipelineHead::open(PrefillShared& shared, Metrics& metrics) {
  const cost::ModelSpec& s = shared.engine.spec();
  const uint32_t tokens = shared.engine.block_tokens();
  const uint64_t block = uint64_t{s.hidden} * sizeof(float) * tokens;
  if (block > wire::kMessageBytesMax - kMiB)
    return fail(Code::kInvalid,
                "a block of %u tokens has %s of activations, too many for a message between "
                "stages: take a smaller --block-size",
                tokens, bytes_text(block).c_str());
  PipelineChainConfig c;
  c.stages = shared.config.stages;
  c.fingerprint = shared.config.fingerprint;
  c.blocks = shared.config.blocks;
  c.first_layer = s.first_layer + s.layers;
  c.seed = shared.config.epoch;
  c.patience = shared.config.pipeline_patience;
  std::unique_ptr<PipelineHead> self(new PipelineHead(shared));
  PipelineHead* const raw = self.get();
  MC_TRY(self->chain_, PipelineChain::open(shared.loop, std::move(c),
                                           {[raw](const Error& why) { raw->lost(why); },
                                            [raw] { return raw->clear(); },
                                            [&host = shared.host] {
                                              host.state_changed();
                                              host.resume();
                                            }},
                                           metrics));
  return self;
}

// The stages' state is void. Fails all requests with the cause; a conductor may retry them.
void PipelineHead::lost(const Error& why) {
  std::vector<PrefillJobPtr> all;
  for (const auto& [tx, job] : shared_.jobs) all.push_back(job);
  for (const PrefillJobPtr& job : all) {
    job->pipeline = PipelinePart::kLost;
    shared_.host.fail_job(job,
                          {Code::kUnavailable, "a stage of the pipeline is gone: " + why.what});
  }
  shared_.host.state_changed();
}

bool PipelineHead::clear() {
  if (shared_.jobs.size() > 0 || shared_.blocks().counts().used > 0) return false;
  shared_.blocks().forget();
  return true;
}

bool PipelineHead::answered(const PrefillJobPtr& job, const Result<PipelineDone>& reply) {
  if (reply) {
    job->done.kv_bytes += reply->kv_bytes;
    for (const PooledPart& part : reply->pooled) {
      auto& blocks = job->pooled[part.stage];
      blocks.insert(blocks.end(), part.blocks.begin(), part.blocks.end());
    }
    // The stage computed until then, and sent for the rest of the time.
    const auto tail = static_cast<int64_t>(std::min<uint64_t>(reply->tail_us, 1u << 30));
    job->computed =
        std::max(job->computed, shared_.loop.clock().now() - std::chrono::microseconds(tail));
    if (reply->code != 0) shared_.host.fail_job(job, {static_cast<Code>(reply->code), reply->what});
  } else {
    shared_.host.fail_job(
        job, {Code::kUnavailable, "a stage of the pipeline is gone: " + reply.error().what});
  }
  if (job->failure) shared_.host.settle(job);
  return !job->failure;
}

void PipelineHead::begin(const PrefillJobPtr& job, size_t reused, std::function<void()> done) {
  PipelineBegin m;
  m.request = job->kv.request;
  m.prompt = job->prompt;
  m.cache_salt = job->cache_salt;
  m.target = job->target;
  m.blocks.assign(job->kv.ids.begin(), job->kv.ids.end());
  m.reused = static_cast<uint32_t>(reused);
  job->pipeline = PipelinePart::kBegun;
  ++job->busy;
  chain_->call<PipelineBegin>(
      std::move(m), [this, job, done = std::move(done)](const Result<PipelineDone>& reply) {
        --job->busy;
        if (answered(job, reply)) done();
      });
}

void PipelineHead::send_chunk(const PrefillJobPtr& job,
                              std::function<void(const PrefillChunk&)> through) {
  struct Sent {
    PrefillChunk chunk;
    size_t left = 0;  // messages
    std::function<void(const PrefillChunk&)> through;
  };
  const auto activations = std::exchange(job->activations, nullptr);
  auto messages =
      pipeline_chunks(job->kv.request, job->chunk.begin, job->chunk.end, job->chunk.last,
                      activations->rows, shared_.engine.block_tokens());
  ++job->busy;
  ++chunks_;
  const auto sent = std::make_shared<Sent>(Sent{job->chunk, messages.size(), std::move(through)});
  for (PipelineChunk& m : messages)
    chain_->call<PipelineChunk>(std::move(m), [this, job, sent](const Result<PipelineDone>& reply) {
      if (--sent->left > 0) {
        answered(job, reply);
        return;
      }
      --job->busy;
      --chunks_;
      if (answered(job, reply)) sent->through(sent->chunk);
      shared_.host.resume();
    });
}

void PipelineHead::fetch(const PrefillJobPtr& job, size_t here, size_t fetched,
                         std::function<void(size_t)> done) {
  if (job->failure) return done(0);
  PipelineFetch m;
  for (size_t i = here; i < here + fetched; ++i) {
    m.hashes.push_back(job->hashes[i]);
    m.blocks.push_back(job->kv.ids[i]);
  }
  ++job->busy;
  chain_->call<PipelineFetch>(
      std::move(m), [job, fetched, done = std::move(done)](const Result<PipelineFetched>& reply) {
        --job->busy;
        done(reply ? std::min<size_t>(reply->blocks, fetched) : 0);
      });
}

void PipelineHead::put(const PrefillJob& job, size_t first, size_t last) {
  PipelinePut contexts, others;
  contexts.cls = "context";
  contexts.keep_ms = static_cast<uint64_t>(std::max(0.0, to_ms(job.keep)));
  others.cls = job.ephemeral ? "ephemeral" : "normal";
  for (size_t i = first; i < last; ++i) {
    PipelinePut& m = i < job.context_blocks ? contexts : others;
    m.hashes.push_back(job.hashes[i]);
    m.blocks.push_back(job.kv.ids[i]);
  }
  for (PipelinePut* m : {&contexts, &others}) {
    if (m->blocks.empty()) continue;
    for (const BlockId id : m->blocks) shared_.blocks().pin(id);
    chain_->call<PipelinePut>(*m, [this, ids = m->blocks](const Result<rpc::Empty>&) {
      for (const BlockId id : ids) shared_.blocks().unpin(id);
    });
  }
}

void PipelineHead::end(const PrefillJob& job) {
  if (job.pipeline == PipelinePart::kBegun && ready() && job.stage < PrefillStage::kSending)
    chain_->call<PipelineEnd>({0, job.kv.request}, [](const Result<rpc::Empty>&) {});
}

Json PipelineHead::state() const {
  return {{"processes", chain_->processes()},
          {"ready", ready()},
          {"chunks", chunks_},
          {"trouble", chain_->trouble()}};
}

}  // namespace mc::serve
