#include "sched/admission.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {
namespace {
constexpr size_t kKnown = 50, kLately = 1000;  // decode times: enough for t_d; kept at most
constexpr double kNearlyAll = 0.95;
}  // namespace

void AdmissionOptions::describe(OptionList& v) {
  v("admission", admission, "which requests are refused, and when", kAdmissions);
  v("ttft-slo", ttft_slo, "promise for the time to first token; 0s: none");
  v("tbt-slo", tbt_slo, "promise for the longest tenth of token gaps; 0s: none");
  v("decode-time", decode_time, "how long a request decodes, until that was observed");
}

void DecodeForecast::Jobs::put(uint64_t id, Job job) {
  take(id);
  by_id_[id] = job;
  by_time_.add(job.from, id, job.tokens);
}

std::optional<DecodeForecast::Job> DecodeForecast::Jobs::take(uint64_t id) {
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) return std::nullopt;
  const Job job = at->second;
  by_time_.remove(job.from, id);
  by_id_.erase(at);
  return job;
}

DecodeForecast::Load DecodeForecast::Jobs::until(Time from) const {
  const TimeSums::Sum sum = by_time_.until(from);
  return {static_cast<double>(sum.requests), static_cast<double>(sum.tokens)};
}

void DecodeForecast::dispatched(uint64_t job, uint64_t tokens, Time decodes_from) {
  coming_.put(job, {tokens, decodes_from});
}

void DecodeForecast::decoding(uint64_t job, Time now) {
  const auto was = coming_.take(job);
  if (!was) return;
  decoding_.requests += 1;
  decoding_.context_tokens += static_cast<double>(was->tokens);
  decoding_jobs_.put(job, {was->tokens, now});
}

void DecodeForecast::ended(uint64_t job, Time now) {
  coming_.take(job);
  const auto was = decoding_jobs_.take(job);
  if (!was) return;
  decoding_.requests -= 1;
  decoding_.context_tokens -= static_cast<double>(was->tokens);
  const Duration took = now - was->from;
  lately_.push_back(took);
  in_order_.insert(std::upper_bound(in_order_.begin(), in_order_.end(), took), took);
  if (lately_.size() > kLately) {
    in_order_.erase(std::lower_bound(in_order_.begin(), in_order_.end(), lately_.front()));
    lately_.pop_front();
  }
}

Duration DecodeForecast::decode_time() const {
  if (lately_.size() < kKnown) return decode_time_;
  return in_order_[static_cast<size_t>(kNearlyAll * static_cast<double>(in_order_.size() - 1))];
}

DecodeForecast::Load DecodeForecast::at(Time then, Time now) const {
  Load load = DecodeForecast::now();
  const Duration each = decode_time();
  const Load gone = decoding_jobs_.until(then - each);
  load.requests -= gone.requests;
  load.context_tokens -= gone.context_tokens;
  const Load come = coming_.until(then);
  const Load left = now + each > then ? Load{} : coming_.until(then - each);
  load.requests += come.requests - left.requests;
  load.context_tokens += come.context_tokens - left.context_tokens;
  return load;
}

double pool_tbt_ms(const DecodeForecast::Load& load, size_t nodes, uint64_t tokens,
                   const Cost& cost) {
  if (nodes == 0) return 0;
  const double share = 1 / static_cast<double>(nodes);
  return cost.mean_step_ms(load.requests * share + 1,
                           load.context_tokens * share + static_cast<double>(tokens));
}

Verdict admit(const Decision& d, uint64_t tokens, const AdmissionOptions& o,
              const DecodeForecast& forecast, size_t decode_nodes, const Cost& cost, Time now) {
  if (d.verdict != Verdict::kAccept || o.admission == "none") return d.verdict;
  if (o.ttft_slo.count() > 0 && d.ttft_ms() > to_ms(o.ttft_slo)) return Verdict::kTtft;
  if (o.tbt_slo.count() == 0 || o.admission == "baseline") return Verdict::kAccept;
  if (d.chosen.whole)  // its present batch is known, its future one is not
    return d.tbt_ms > to_ms(o.tbt_slo) ? Verdict::kTbt : Verdict::kAccept;
  const Time computed = now + from_seconds(d.ttft_ms() / 1e3);
  const auto load = o.admission == "early" ? forecast.now() : forecast.at(computed, now);
  return pool_tbt_ms(load, decode_nodes, tokens, cost) > to_ms(o.tbt_slo) ? Verdict::kTbt
                                                                          : Verdict::kAccept;
}

Refusal refusal(const Decision& d, Verdict verdict, uint64_t tokens, const AdmissionOptions& o,
                const DecodeForecast& forecast, size_t decode_nodes, const Cost& cost, Time now) {
  if (verdict == Verdict::kTtft)
    return {strf("predicted TTFT %.1f ms is over the promise of %s", d.ttft_ms(),
                 to_text(o.ttft_slo).c_str()),
            from_seconds((d.ttft_ms() - to_ms(o.ttft_slo)) / 1e3)};
  if (d.chosen.whole)
    return {strf("predicted TBT %.1f ms is over the promise of %s", d.tbt_ms,
                 to_text(o.tbt_slo).c_str()),
            std::chrono::seconds(1)};
  const Time computed = now + from_seconds(d.ttft_ms() / 1e3);
  const auto tbt = [&](Duration later) {
    return pool_tbt_ms(forecast.at(computed + later, now), decode_nodes, tokens, cost);
  };
  Duration later = std::chrono::seconds(1);
  while (later < kForecast && tbt(later) > to_ms(o.tbt_slo)) later *= 2;
  return {strf("predicted TBT %.1f ms is over the promise of %s", tbt(Duration{0}),
               to_text(o.tbt_slo).c_str()),
          std::min(later, kForecast)};
}

Verdict admit_decode(const DecodeView& node, uint64_t tokens, const AdmissionOptions& o,
                     const Cost& cost) {
  if (o.admission != "baseline" || o.tbt_slo.count() == 0) return Verdict::kAccept;
  const double step = cost.step_ms(node.requests + 1, node.context_tokens + tokens);
  return step > to_ms(o.tbt_slo) ? Verdict::kTbt : Verdict::kAccept;
}

}  // namespace mc::sched
