// The conductor's counters, gauges and histograms. Private to conductor*.cc.
//
// Thread: any.
#pragma once
#include "serve/conductor/conductor.h"

namespace mc::serve {

struct Conductor::Instruments {
  explicit Instruments(Metrics& m)
      : metrics(m),
        input_tokens(m.counter("mc_conductor_input_tokens_total", "prompt tokens accepted")),
        hit_tokens(m.counter("mc_conductor_hit_tokens_total", "prompt tokens that were reused")),
        reachable_tokens(
            m.counter("mc_conductor_reachable_hit_tokens_total",
                      "prompt tokens that some worker or the pool had when it was decided")),
        stale_tokens(
            m.counter("mc_conductor_stale_hit_tokens_total",
                      "prompt tokens that the index listed on a worker that did not hold them")),
        replicated(m.counter("mc_conductor_replicated_tokens_total",
                             "prompt tokens whose KV one prefill worker fetched from another")),
        retries(m.counter("mc_conductor_retries_total", "requests tried again on other workers")),
        kv_errors(m.counter("mc_conductor_kv_errors_total", "blocks of KV that did not verify")),
        wasted(m.counter("mc_conductor_wasted_prefill_ms_total",
                         "prefill time of requests that got no answer")),
        decision(m.histogram("mc_conductor_decision_seconds", "time to choose the workers",
                             {1e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 1e-2})),
        predicted(m.histogram("mc_conductor_predicted_ttft_seconds", "predicted TTFT")),
        ttft(m.histogram("mc_conductor_ttft_seconds", "time to the first token")),
        error(m.histogram("mc_conductor_ttft_error_seconds", "predicted minus actual TTFT",
                          error_buckets())),
        queue_error(part(m, "queue")),
        fetch_error(part(m, "fetch")),
        pool_error(part(m, "pool")),
        prefill_error(part(m, "prefill")),
        transfer_error(part(m, "transfer")),
        first_step_error(part(m, "first_step")),
        tbt_error(m.histogram(
            "mc_conductor_tbt_error_seconds", "predicted minus actual mean time between tokens",
            {-1, -0.1, -0.03, -0.01, -0.003, -0.001, 0, 0.001, 0.003, 0.01, 0.03, 0.1, 1})) {
    for (const char* const op : {"reserve", "lend", "prefill", "commit"})
      for (const bool ok : {true, false}) (void)tx_counter(op, ok);  // there from the start, with 0
  }
  static std::vector<double> error_buckets() {
    return {-10, -1, -0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1, 10};
  }
  static BucketHistogram& part(Metrics& m, const char* name) {
    return m.histogram("mc_conductor_part_error_seconds",
                       "predicted minus actual time of a part of TTFT", error_buckets(),
                       {{"part", name}});
  }
  // Counts a step on a worker. Requires: `op` is a literal.
  void tx(const char* op, bool ok) {
    Counter*& known = steps[{op, ok}];
    if (known == nullptr) known = &tx_counter(op, ok);
    known->add();
  }
  Counter& tx_counter(const char* op, bool ok) const {
    return metrics.counter("mc_conductor_tx_total", "steps of requests on workers",
                           {{"op", op}, {"result", ok ? "ok" : "failed"}});
  }
  void measured(const sched::Measured& m, PoolView& pool);
  Metrics& metrics;
  std::map<std::pair<const char*, bool>, Counter*> steps;
  Counter& input_tokens;
  Counter& hit_tokens;
  Counter& reachable_tokens;
  Counter& stale_tokens;
  Counter& replicated;
  Counter& retries;
  Counter& kv_errors;
  Counter& wasted;
  BucketHistogram& decision;
  BucketHistogram& predicted;
  BucketHistogram& ttft;
  BucketHistogram& error;
  BucketHistogram& queue_error;
  BucketHistogram& fetch_error;
  BucketHistogram& pool_error;
  BucketHistogram& prefill_error;
  BucketHistogram& transfer_error;
  BucketHistogram& first_step_error;
  BucketHistogram& tbt_error;
};

}  // namespace mc::serve
