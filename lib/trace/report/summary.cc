// Computes a summary. report.cc formats it.
#include <algorithm>
#include <cmath>

#include "trace/report/report.h"

namespace mc::trace {
namespace {

using Values = std::vector<double>;

void add(Values& to, const std::optional<double>& value) {
  if (value) to.push_back(*value);
}

std::optional<double> per(double amount, const std::optional<double>& seconds) {
  if (!seconds || *seconds <= 0) return std::nullopt;
  return amount / *seconds;
}

void count(Summary& s, const RequestResult& r, const Slo& slo) {
  const std::string reason = r.reason.empty() ? "unknown" : r.reason;
  switch (r.status) {
    case Status::kOk: break;
    case Status::kRejected: ++s.rejected, ++s.rejected_by[reason]; return;
    case Status::kFailed: ++s.failed, ++s.errors[reason]; return;
    case Status::kTimeout: ++s.timeout, ++s.errors[reason]; return;
    case Status::kCancelled: ++s.cancelled, ++s.errors[reason]; return;
  }
  ++s.ok;
  s.input_tokens += r.input;
  s.output_tokens += r.output;
  // An unmeasured figure misses its objective. Without a second token there is no gap, so no miss.
  const auto tbt = r.tbt_ms();
  const bool ttft_missed = slo.ttft_ms && (!r.ttft_ms || *r.ttft_ms > *slo.ttft_ms);
  const bool tbt_missed = slo.tbt_ms && (tbt ? *tbt > *slo.tbt_ms : r.output > 1);
  s.slo_ttft_miss += ttft_missed;
  s.slo_tbt_miss += tbt_missed;
  s.within_slo += !ttft_missed && !tbt_missed;
}

void count_cache(Summary& s, const RequestResult& r, uint64_t block_tokens) {
  if (r.status != Status::kOk || !r.cached) return;
  s.hit_tokens = s.hit_tokens.value_or(0) + *r.cached;
  s.hit_known_input += r.input;
  if (!block_tokens) return;
  s.hit_known_full_blocks += r.input / block_tokens;
  s.hit_full_blocks += *r.cached / block_tokens;
}

void count_node(std::map<std::string, NodeShare>& nodes, const std::string& id, const char* role,
                const RequestResult& r) {
  if (id.empty()) return;
  NodeShare& node = nodes.try_emplace(std::string(role) + id).first->second;
  node.id = id;
  node.role = role;
  ++node.requests;
  if (!r.cached) return;
  node.input_tokens += r.input;
  node.hit_tokens += *r.cached;
}

void measure(Summary& s, const std::vector<RequestResult>& results) {
  Values lag, ttft, queue, prefill, transfer, first, tbt, tpot, itl, e2e, error, abs_error;
  for (const RequestResult& r : results) {
    if (r.t_sent_ms) lag.push_back(*r.t_sent_ms - r.t_intended_ms);
    if (r.status != Status::kOk) continue;
    add(ttft, r.ttft_ms);
    add(queue, r.queue_ms);
    add(prefill, r.prefill_ms);
    add(transfer, r.transfer_ms);
    add(first, r.first_step_ms);
    add(tbt, r.tbt_ms());
    add(tpot, r.tpot_ms());
    add(e2e, r.e2e_ms);
    itl.insert(itl.end(), r.gaps_ms.begin(), r.gaps_ms.end());
    if (!r.predicted_ttft_ms || !r.ttft_ms) continue;
    error.push_back(*r.predicted_ttft_ms - *r.ttft_ms);
    abs_error.push_back(std::abs(error.back()));
  }
  s.lag_ms = Distribution(std::move(lag));
  s.ttft_ms = Distribution(std::move(ttft));
  s.queue_ms = Distribution(std::move(queue));
  s.prefill_ms = Distribution(std::move(prefill));
  s.transfer_ms = Distribution(std::move(transfer));
  s.first_step_ms = Distribution(std::move(first));
  s.tbt_ms = Distribution(std::move(tbt));
  s.tpot_ms = Distribution(std::move(tpot));
  s.itl_ms = Distribution(std::move(itl));
  s.e2e_ms = Distribution(std::move(e2e));
  s.predictor_error_ms = Distribution(std::move(error));
  s.predictor_abs_ms = Distribution(std::move(abs_error));
}

// From the first intended send to the last known time of any request.
std::optional<double> measured_seconds(const std::vector<RequestResult>& results) {
  double first = INFINITY, last = 0;
  for (const RequestResult& r : results) {
    first = std::min(first, r.t_intended_ms);
    last = std::max({last, r.t_intended_ms + r.e2e_ms.value_or(0), r.t_sent_ms.value_or(0)});
  }
  if (results.empty() || last <= first) return std::nullopt;
  return (last - first) / 1000;
}

// n requests have n - 1 gaps: one more mean gap makes the rate of a steady stream exact.
std::optional<double> offered(const std::vector<RequestResult>& results) {
  if (results.size() < 2) return std::nullopt;
  const auto [first, last] = std::minmax_element(
      results.begin(), results.end(), [](const RequestResult& a, const RequestResult& b) {
        return a.t_intended_ms < b.t_intended_ms;
      });
  return per(static_cast<double>(results.size() - 1),
             (last->t_intended_ms - first->t_intended_ms) / 1000);
}

}  // namespace

const char* name(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kRejected: return "rejected";
    case Status::kFailed: return "failed";
    case Status::kTimeout: return "timeout";
    case Status::kCancelled: return "cancelled";
  }
  return "?";
}

std::optional<double> RequestResult::tbt_ms() const {
  if (gaps_ms.empty()) return given_tbt_ms;
  return longest_tenth_mean(gaps_ms);
}

std::optional<double> RequestResult::tpot_ms() const {
  if (output < 2 || !ttft_ms || !e2e_ms) return std::nullopt;
  return (*e2e_ms - *ttft_ms) / static_cast<double>(output - 1);
}

std::optional<double> Summary::hit_ratio_tokens() const {
  if (!hit_tokens || !hit_known_input) return std::nullopt;
  return static_cast<double>(*hit_tokens) / static_cast<double>(hit_known_input);
}

Summary summarize(const std::vector<RequestResult>& results, const RunInfo& info) {
  Summary s;
  s.sent = results.size();
  std::map<std::string, NodeShare> nodes;
  for (const RequestResult& r : results) {
    count(s, r, info.slo);
    count_cache(s, r, info.block_tokens);
    count_node(nodes, r.prefill, "prefill", r);
    count_node(nodes, r.decode, "decode", r);
    if (r.kv_errors) s.kv_errors = s.kv_errors.value_or(0) + *r.kv_errors;
  }
  if (info.kv_errors) s.kv_errors = info.kv_errors;
  for (auto& [key, node] : nodes) s.nodes.push_back(std::move(node));
  std::stable_partition(s.nodes.begin(), s.nodes.end(),
                        [](const NodeShare& n) { return std::string_view(n.role) == "prefill"; });
  measure(s, results);
  s.duration_s = info.duration_s ? info.duration_s : measured_seconds(results);
  s.offered_rps = offered(results);
  s.completed_rps = per(static_cast<double>(s.ok), s.duration_s);
  s.goodput_rps = per(static_cast<double>(s.within_slo), s.duration_s);
  if (s.sent) s.effective_ratio = static_cast<double>(s.within_slo) / static_cast<double>(s.sent);
  if (!s.lag_ms.empty()) s.schedule_kept = s.lag_ms.percentile(99) <= info.max_lag_ms;
  return s;
}

}  // namespace mc::trace
