// The head of a pipeline: directs the stages, and fails requests when one is gone.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "serve/pipeline/pipeline_worker.h"
#include "serve/worker/prefill_worker.h"

namespace mc::serve {

Result<> PrefillWorker::open_pipeline(Metrics& metrics) {
  const cost::ModelSpec& s = engine_.spec();
  const uint64_t row = uint64_t{s.hidden} * sizeof(float);
  if (row * engine_.block_tokens() > wire::kMessageBytesMax - kMiB)
    return fail(Code::kInvalid,
                "a block of %u tokens has %s of activations, too many for a message between "
                "stages: take a smaller --block-size",
                engine_.block_tokens(), bytes_text(row * engine_.block_tokens()).c_str());
  PipelineChainConfig c;
  c.stages = config_.stages;
  c.fingerprint = config_.fingerprint;
  c.blocks = config_.blocks;
  c.first_layer = s.first_layer + s.layers;
  c.seed = config_.epoch;
  c.patience = config_.pipeline_patience;
  MC_TRY(chain_, PipelineChain::open(loop_, std::move(c),
                                     {[this](const Error& why) { pipeline_lost(why); },
                                      [this] { return clear_for_pipeline(); },
                                      [this] {
                                        state_changed();
                                        advance();
                                      }},
                                     metrics));
  return {};
}

// The stages' state is void. Fails all requests with the cause; a conductor may retry them.
void PrefillWorker::pipeline_lost(const Error& why) {
  std::vector<JobPtr> all;
  for (const auto& [tx, job] : jobs_) all.push_back(job);
  for (const JobPtr& job : all) {
    job->lost = true;
    fail_job(job, {Code::kUnavailable, "a stage of the pipeline is gone: " + why.what});
  }
  state_changed();
}

bool PrefillWorker::clear_for_pipeline() {
  if (!jobs_.empty() || blocks_.counts().used > 0) return false;
  blocks_.forget();
  return true;
}

// Returns false if the request failed, now or before.
bool PrefillWorker::pipeline_answered(const JobPtr& job, const Result<PipelineDone>& reply) {
  if (reply) {
    job->done.kv_bytes += reply->kv_bytes;
    for (const PooledPart& part : reply->pooled) {
      auto& blocks = job->pooled[part.stage];
      blocks.insert(blocks.end(), part.blocks.begin(), part.blocks.end());
    }
    // The stage computed until then, and sent for the rest of the time.
    const Time computed = loop_.clock().now() - std::chrono::microseconds(static_cast<int64_t>(
                                                    std::min<uint64_t>(reply->tail_us, 1u << 30)));
    job->computed = std::max(job->computed, computed);
    if (reply->code != 0) fail_job(job, {static_cast<Code>(reply->code), reply->what});
  } else {
    fail_job(job, {Code::kUnavailable, "a stage of the pipeline is gone: " + reply.error().what});
  }
  if (job->failure) settle(job);
  return !job->failure;
}

void PrefillWorker::begin_in_pipeline(const JobPtr& job, size_t reused) {
  PipelineBegin m;
  m.request = job->kv.request;
  m.prompt = job->prompt;
  m.cache_salt = job->cache_salt;
  m.target = job->target;
  m.blocks.assign(job->kv.ids.begin(), job->kv.ids.end());
  m.reused = static_cast<uint32_t>(reused);
  job->in_pipeline = true;
  ++job->busy;
  chain_->call<PipelineBegin>(std::move(m), [this, job](const Result<PipelineDone>& reply) {
    --job->busy;
    if (pipeline_answered(job, reply)) deliver(job);
  });
}

void PrefillWorker::chunk_to_pipeline(const JobPtr& job) {
  const auto activations = std::exchange(job->activations, nullptr);
  auto messages = pipeline_chunks(job->kv.request, job->chunk.begin, job->chunk.end,
                                  job->chunk.last, activations->rows, engine_.block_tokens());
  ++job->busy;
  ++in_pipeline_;
  const auto left = std::make_shared<size_t>(messages.size());
  for (PipelineChunk& m : messages)
    chain_->call<PipelineChunk>(
        std::move(m), [this, job, left, chunk = job->chunk](const Result<PipelineDone>& reply) {
          if (--*left > 0) {
            pipeline_answered(job, reply);
            return;
          }
          --job->busy;
          --in_pipeline_;
          if (pipeline_answered(job, reply)) chunk_through(job, chunk);
          advance();
        });
}

// The head got blocks of the prompt from the pool. Those that every stage got too are used.
void PrefillWorker::fetch_in_pipeline(const JobPtr& job, size_t here, size_t fetched) {
  if (job->failure) return loaded(job, 0);
  PipelineFetch m;
  for (size_t i = here; i < here + fetched; ++i) {
    m.hashes.push_back(job->hashes[i]);
    m.blocks.push_back(job->kv.ids[i]);
  }
  ++job->busy;
  chain_->call<PipelineFetch>(std::move(m),
                              [this, job, fetched](const Result<PipelineFetched>& reply) {
                                --job->busy;
                                loaded(job, reply ? std::min<size_t>(reply->blocks, fetched) : 0);
                              });
}

// Pins the blocks until every stage has put its part or given it up.
void PrefillWorker::put_in_pipeline(const Job& job, size_t first, size_t last) {
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
    for (const BlockId id : m->blocks) blocks_.pin(id);
    chain_->call<PipelinePut>(*m, [this, ids = m->blocks](const Result<rpc::Empty>&) {
      for (const BlockId id : ids) blocks_.unpin(id);
    });
  }
}

}  // namespace mc::serve
