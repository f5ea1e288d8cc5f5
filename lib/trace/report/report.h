// Summarizes what a replay measured, as text and JSON.
// There is one RequestResult for each request, and one Summary of all.
//
// Latencies start at the *intended* time, so that a late client shows in them. A value that was not
// measured is absent: std::nullopt here, null in JSON, "-" in text, never 0.
//   TTFT  intended send to first token
//   TBT   mean of the longest 10 % of a request's token gaps (the paper's)
//   TPOT  (E2E - TTFT) / (output tokens - 1)
//   ITL   every token gap of every request, pooled
//   E2E   intended send to last token
// Requests of fewer than two tokens have no TBT and no TPOT; they cannot miss a TBT objective.
//
// Thread: values; any thread. Pure: no clock, no I/O.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "trace/records/distribution.h"

namespace mc::trace {

enum class Status { kOk, kRejected, kFailed, kTimeout, kCancelled };
const char* name(Status status);  // "ok", "rejected", ...

struct RequestResult {
  uint64_t id = 0;                  // Arrived::id
  std::string request_id;           // the server's, as in /explain/ID; "" unknown
  double t_intended_ms = 0;         // after the start of the replay
  std::optional<double> t_sent_ms;  // absent: never sent
  uint64_t input = 0;               // prompt tokens
  uint64_t output = 0;              // tokens received
  uint64_t hash_blocks = 0;         // ids of the prompt
  std::optional<uint64_t> cached;   // prompt tokens from caches, if the server reports it
  std::string prefill, decode;      // the nodes, "" unknown
  Status status = Status::kOk;
  int http = 0;        // 0: no answer
  std::string reason;  // why not ok: "ttft_slo", "connection reset", ...
  std::optional<double> queue_ms, prefill_ms, transfer_ms, first_step_ms;  // parts of TTFT
  std::optional<double> predicted_ttft_ms;                                 // the conductor's
  std::optional<double> ttft_ms, e2e_ms;
  std::vector<double> gaps_ms;  // between tokens: output - 1 of them unless the request failed
  std::optional<double> given_tbt_ms;  // set when the gaps were not kept
  std::optional<uint64_t> kv_errors;   // wrong KV bytes, if the server reports it

  std::optional<double> tbt_ms() const;  // longest tenth
  std::optional<double> tpot_ms() const;
};

struct Slo {
  std::optional<double> ttft_ms = std::nullopt, tbt_ms = std::nullopt;  // absent: no objective
};

// The conditions of a run. The caller fills all of it; nothing here is measured.
struct RunInfo {
  std::string mode = "live";  // "live" or "sim"
  std::string started;        // wall-clock text
  std::string url, model;
  uint64_t seed = 0;
  std::string trace_path;
  uint64_t trace_requests = 0;
  double trace_span_s = 0;
  double trace_mean_input = 0, trace_mean_output = 0;
  uint64_t block_tokens = 512;
  std::string arrival = "trace";
  double speed = 1;
  std::optional<double> qps;
  std::optional<uint64_t> concurrency;  // closed loop
  Slo slo;
  double max_lag_ms = 10;
  std::optional<uint64_t> prefill_nodes, decode_nodes;
  std::string policy, admission;     // "" unknown
  std::optional<double> duration_s;  // start to the end of the last request; else from the results
  bool interrupted = false;          // by a signal, before its end
  // Of the requests that succeeded, as the hits are: predict_hits().
  std::optional<uint64_t> reachable_hit_tokens;  // of an infinite cache
  std::optional<uint64_t> expected_hit_tokens;   // of this cluster's caches
  std::optional<uint64_t> kv_errors;             // the cluster's own count; else the requests' sum
  bool gaps_are_chunks = false;  // the server sent several tokens an event and did not say how many
};

struct NodeShare {
  std::string id;
  const char* role = "prefill";
  uint64_t requests = 0, input_tokens = 0, hit_tokens = 0;
};

struct Gate {
  std::string expr;
  bool pass = false;
};

struct Summary {
  uint64_t sent = 0, ok = 0, rejected = 0, failed = 0, timeout = 0, cancelled = 0;
  uint64_t within_slo = 0, slo_ttft_miss = 0, slo_tbt_miss = 0;
  std::map<std::string, uint64_t> rejected_by;  // reason: count
  std::map<std::string, uint64_t> errors;       // reasons of failed, timed-out and cancelled
  std::optional<double> effective_ratio;        // within_slo / sent
  std::optional<double> offered_rps, completed_rps, goodput_rps;
  std::optional<double> duration_s;
  uint64_t input_tokens = 0, output_tokens = 0;             // of requests that were ok
  std::optional<uint64_t> hit_tokens;                       // of requests whose server reports it
  uint64_t hit_known_input = 0, hit_known_full_blocks = 0;  // denominators of the hit ratios
  uint64_t hit_full_blocks = 0;                             // of the trace, in each request's hits
  std::optional<uint64_t> kv_errors;
  Distribution lag_ms;
  std::optional<bool> schedule_kept;  // p99 of the lag within max_lag_ms
  Distribution ttft_ms, queue_ms, prefill_ms, transfer_ms, first_step_ms;
  Distribution tbt_ms, tpot_ms, itl_ms, e2e_ms;
  Distribution predictor_error_ms, predictor_abs_ms;  // predicted - actual TTFT
  std::vector<NodeShare> nodes;
  std::vector<Gate> gates;

  std::optional<double> hit_ratio_tokens() const;
};

Summary summarize(const std::vector<RequestResult>& results, const RunInfo& info);

// A --require gate: "effective>=0.95", "p99.ttft_s<20", "failed==0", "hit-tokens>0". The left side
// is a count (sent ok rejected failed timeout cancelled kv-errors hit-tokens), a figure (effective
// goodput completed offered hit-ratio) or STAT.METRIC as in the JSON ("mean.tbt_ms"). A figure that
// was not measured fails its gate. Errors: kInvalid for a malformed expression.
Result<Gate> check_gate(const Summary& summary, const std::string& expr);
Result<> check_gate_syntax(
    const std::string& expr);  // before the run, so that a typo costs nothing

std::string report_text(const Summary& summary, const RunInfo& info);
Json report_json(const Summary& summary, const RunInfo& info);  // schema "mc-replay/1"
// One line per request, with its newline; `gaps`: with the token gaps.
std::string request_line(const RequestResult& result, bool gaps);

}  // namespace mc::trace
