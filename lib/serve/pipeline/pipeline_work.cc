// What a stage does with a chunk: computes its layers, sends their KV, passes the rest on.
#include <algorithm>
#include <utility>

#include "serve/pipeline/pipeline_worker.h"

namespace mc::serve {

// As in PrefillWorker: the compute thread gets all layers at once. The loop handles a layer once
// its modelled time has passed.
void PipelineWorker::compute(const WorkPtr& work, uint64_t begin, uint64_t end,
                             Activations activations) {
  const Job& job = *work->job;
  const uint32_t layers = engine_.spec().layers;
  if (core_->room() < layers) {  // none of them: a chunk that is half computed is of no use
    work->broken = Error{Code::kBusy, "too much computing is queued: retry later"};
    return part_done(work);
  }
  const Duration predicted =
      engine_.modelled_time() ? timing_.chunk(begin, end, job.reused) : Duration{};
  const Time start = std::max(core_->free_at, loop_.clock().now());
  core_->free_at = start + predicted;
  const auto x = std::make_shared<Activations>(std::move(activations));
  const ChunkView view{{job.prompt, job.parents, job.kv.blocks}, begin, end};
  ++busy_;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const Time due = start + predicted * (layer + 1) / layers;
    const auto spent = std::make_shared<std::pair<Time, Time>>();
    const bool queued = core_->submit(
        [this, view, layer, x, spent] {
          spent->first = loop_.clock().now();
          engine_.prefill_layer(view, layer, *x);
          spent->second = loop_.clock().now();
        },
        [this, work, begin, end, layer, x, due, spent] {
          if (config_.trace != nullptr)
            config_.trace->span("compute",
                                strf("layer %u of tokens %llu", engine_.spec().first_layer + layer,
                                     static_cast<unsigned long long>(begin)),
                                spent->first, std::max(spent->second, due), work->job->kv.request);
          const auto through = [this, work, begin, end, layer, x] {
            if (layer + 1 == engine_.spec().layers && next_ != nullptr && !work->broken)
              for (const PipelineChunk& m :
                   pipeline_chunks(work->job->kv.request, begin, end, work->last, x->rows,
                                   engine_.block_tokens()))
                pass_on(work, m);
            layer_done(work, begin, end, layer);
          };
          // A layer that is due waits for earlier ones, whose timers may be late.
          if (late_.empty() && loop_.clock().now() >= due) return through();
          late_.push_back(through);
          after(due, [this] {
            const auto first = std::move(late_.front());
            late_.pop_front();
            first();
          });
        });
    MC_CHECK(queued);
  }
}

void PipelineWorker::layer_done(const WorkPtr& work, uint64_t begin, uint64_t end, uint32_t layer) {
  const uint64_t tokens = engine_.block_tokens(), bytes = engine_.spec().layer_bytes(tokens);
  const size_t blocks = (end + tokens - 1) / tokens;
  if (sender_->granularity() == SendGranularity::kLayer)
    send(work, begin / tokens, blocks, layer * bytes, bytes);
  if (layer + 1 < engine_.spec().layers) return;
  --busy_;
  computed_.add(end - begin);
  work->computed = std::max(work->computed, loop_.clock().now());
  if (sender_->granularity() == SendGranularity::kPrompt && work->last)
    send(work, 0, blocks, 0, core_->block_bytes());
  if (sender_->granularity() == SendGranularity::kChunk)
    send(work, begin / tokens, blocks, 0, core_->block_bytes());
  part_done(work);
}

void PipelineWorker::send(const WorkPtr& work, size_t first, size_t last, uint64_t at,
                          uint64_t bytes) {
  first = std::max(first, work->job->kv.there);
  if (first >= last || !work->job->reachable || work->broken) return;
  ++busy_;
  ++work->parts;
  work->done.kv_bytes += (last - first) * bytes;
  const uint32_t layers =
      sender_->granularity() == SendGranularity::kPrompt ? engine_.spec().layers : 1;
  const Time begun = loop_.clock().now();
  sender_->send(
      std::shared_ptr<KvRoute>(work->job, &work->job->kv),
      {first, last, at, bytes, begun + config_.send_timeout * layers},
      [this, work, begun, first, at](const Result<>& sent) {
        --busy_;
        if (config_.trace != nullptr)
          config_.trace->span(
              "send", strf("from block %zu at %llu", first, static_cast<unsigned long long>(at)),
              begun, loop_.clock().now(), work->job->kv.request);
        if (!sent && work->done.code == 0) {
          work->done.code = static_cast<uint8_t>(sent.error().code);
          work->done.what = "sending KV to " + work->job->kv.decode + ": " + sent.error().what;
        }
        part_done(work);
      });
}

template <class M>
void PipelineWorker::pass_on(const WorkPtr& work, const M& message) {
  M on = message;
  on.pipeline = last_.pipeline;
  ++work->parts;
  next_->call<M>(on, config_.work, [this, work](const Result<PipelineDone>& reply) {
    if (!reply) {
      work->broken = reply.error();
    } else {
      work->done.kv_bytes += reply->kv_bytes;
      work->done.pooled.insert(work->done.pooled.end(), reply->pooled.begin(), reply->pooled.end());
      if (work->done.code == 0) {
        work->done.code = reply->code;
        work->done.what = reply->what;
      }
      work->computed = std::max(work->computed,
                                loop_.clock().now() - std::chrono::microseconds(std::min<uint64_t>(
                                                          reply->tail_us, 3'600'000'000)));
    }
    part_done(work);
  });
}

void PipelineWorker::part_done(const WorkPtr& work) {
  if (--work->parts > 0) return;
  if (work->broken) return work->reply.error(*work->broken);
  if (work->last) {
    const auto it = jobs_.find(work->job->kv.request);
    if (it != jobs_.end() && it->second == work->job) jobs_.erase(it);
  }
  if (auto& pooled = work->job->kv.pooled; !pooled.empty()) {
    std::sort(pooled.begin(), pooled.end());
    work->done.pooled.push_back({config_.stage, std::exchange(pooled, {})});
  }
  const Duration tail = std::max(Duration{}, loop_.clock().now() - work->computed);
  work->done.tail_us =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(tail).count());
  work->reply(work->done);
}

}  // namespace mc::serve
