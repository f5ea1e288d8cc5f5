#include "serve/prefill/prefill_shared.h"

#include <utility>

namespace mc::serve {
namespace {

Gauge& blocks_gauge(Metrics& m, const char* state) {
  return m.gauge("mc_engine_blocks", "KV blocks by state", {{"state", state}});
}

}  // namespace

PrefillCounters::PrefillCounters(Metrics& m)
    : prompts(m.counter("mc_engine_prompts_total", "prompts whose KV was delivered")),
      prompt_tokens(m.counter("vllm:prompt_tokens_total", "prompt tokens prefilled")),
      queries(m.counter("vllm:prefix_cache_queries_total", "prompt tokens looked up in the cache")),
      hits(m.counter("vllm:prefix_cache_hits_total",
                     "prompt tokens reused from the cache or the pool")),
      pool_tokens(m.counter("mc_engine_pool_tokens_total", "reused tokens fetched from the pool")),
      failed(m.counter("mc_engine_failed_requests_total", "requests ended as errors")),
      aborted(m.counter("mc_engine_aborted_requests_total", "requests aborted by a conductor")),
      computed(m.counter("mc_engine_computed_tokens_total", "prompt tokens computed")),
      peer_tokens(m.counter("mc_engine_peer_tokens_total",
                            "reused tokens fetched from another prefill worker")),
      peer_failures(m.counter("mc_engine_peer_fetch_failures_total",
                              "fetches from prefill workers that failed or came too late")),
      pinned_blocks(m.counter("mc_engine_lent_blocks_total",
                              "blocks pinned for another prefill worker to read")),
      pins_expired(m.counter("mc_engine_lent_expired_total",
                             "pins for another prefill worker that expired")),
      hints(m.counter("mc_engine_prefetch_hints_total",
                      "blocks of queued prompts hinted to the pool before their fetch")),
      queue(m.histogram("vllm:request_queue_time_seconds", "time from Prefill until execution")),
      load(m.histogram("mc_engine_load_seconds", "time to load reused KV")),
      prefill(m.histogram("vllm:request_prefill_time_seconds", "time to compute a prompt's KV")),
      transfer(m.histogram("mc_engine_transfer_wait_seconds",
                           "time from the last computed layer until the decode worker has all")),
      running(m.gauge("vllm:num_requests_running", "prompts being computed or delivered",
                      {{"role", "prefill"}})),
      waiting(m.gauge("vllm:num_requests_waiting", "prompts waiting to be computed",
                      {{"role", "prefill"}})),
      usage(m.gauge("vllm:kv_cache_usage_perc", "share of the blocks in use")),
      free(blocks_gauge(m, "free")),
      cached(blocks_gauge(m, "cached")),
      used(blocks_gauge(m, "used")) {}

PrefillShared::PrefillShared(io::Loop& on, xfer::Engine& transfers, const Engine& model,
                             const PrefillConfig& settings, Metrics& metrics,
                             std::shared_ptr<WorkerCore> blocks, PrefillHost& worker)
    : loop(on),
      xfer(transfers),
      engine(model),
      config(settings),
      core(std::move(blocks)),
      shape(KvShape::of(engine.spec(), engine.block_tokens(), engine.ranks())),
      counters(metrics),
      host(worker),
      transfer(on, transfers, metrics) {}

void PrefillShared::place_blocks(PrefillJob& job) const {
  job.kv.blocks.clear();
  job.kv.ids = core->blocks().find(job.tx)->blocks;
  for (const BlockId id : job.kv.ids) job.kv.blocks.push_back(core->block(id));
}

void PrefillShared::trace(const char* track, const std::string& name, const PrefillJob& job,
                          Time begin, Time end) const {
  if (config.trace != nullptr) config.trace->span(track, name, begin, end, job.kv.request);
}

}  // namespace mc::serve
