// The conductor's metrics. Private to conductor*.cc.
//
// Thread: any.
#pragma once
#include "serve/conductor.h"

namespace mc::serve {

struct Conductor::Numbers {
  explicit Numbers(Metrics& m)
      : input_tokens(m.counter("mc_conductor_input_tokens_total", "prompt tokens accepted")),
        hit_tokens(m.counter("mc_conductor_hit_tokens_total", "prompt tokens that were reused")),
        reachable_tokens(m.counter("mc_conductor_reachable_hit_tokens_total",
                                   "prompt tokens that some worker held when it was decided")),
        retries(m.counter("mc_conductor_retries_total", "requests tried again on other workers")),
        kv_errors(m.counter("mc_conductor_kv_errors_total", "blocks of KV that did not verify")),
        decision(m.histogram("mc_conductor_decision_seconds", "time to choose the workers",
                             {1e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 1e-2})),
        predicted(m.histogram("mc_conductor_predicted_ttft_seconds", "predicted TTFT")),
        ttft(m.histogram("mc_conductor_ttft_seconds", "time to the first token")),
        error(m.histogram("mc_conductor_ttft_error_seconds", "predicted minus actual TTFT",
                          {-10, -1, -0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1, 10})) {}
  Counter& input_tokens;
  Counter& hit_tokens;
  Counter& reachable_tokens;
  Counter& retries;
  Counter& kv_errors;
  BucketHistogram& decision;
  BucketHistogram& predicted;
  BucketHistogram& ttft;
  BucketHistogram& error;
};

}  // namespace mc::serve
