#include "sched/admission.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {
namespace {
constexpr size_t kKnown = 50, kLately = 1000;  // decode times: enough, and kept
}

void AdmissionOptions::describe(OptionList& v) {
  v("admission", admission, "which requests are refused, and when", kAdmissions);
  v("ttft-slo", ttft_slo, "promise for the time to first token; 0s: none");
  v("tbt-slo", tbt_slo, "promise for the longest tenth of token gaps; 0s: none");
  v("decode-time", decode_time, "how long a request decodes, until that was observed");
}

void DecodeForecast::dispatched(uint64_t job, uint64_t tokens, Time decodes_from) {
  coming_[job] = {tokens, decodes_from};
}

void DecodeForecast::decoding(uint64_t job, Time now) {
  const auto at = coming_.find(job);
  if (at == coming_.end()) return;
  decoding_.requests += 1;
  decoding_.context_tokens += static_cast<double>(at->second.tokens);
  decoding_jobs_[job] = {at->second.tokens, now};
  coming_.erase(at);
}

void DecodeForecast::ended(uint64_t job, Time now) {
  coming_.erase(job);
  const auto at = decoding_jobs_.find(job);
  if (at == decoding_jobs_.end()) return;
  decoding_.requests -= 1;
  decoding_.context_tokens -= static_cast<double>(at->second.tokens);
  const double seconds = to_seconds(now - at->second.from);
  lately_.push_back(seconds);
  in_order_.insert(std::upper_bound(in_order_.begin(), in_order_.end(), seconds), seconds);
  if (lately_.size() > kLately) {
    in_order_.erase(std::lower_bound(in_order_.begin(), in_order_.end(), lately_.front()));
    lately_.pop_front();
  }
  decoding_jobs_.erase(at);
}

double DecodeForecast::survives(double seconds) const {
  if (lately_.size() < kKnown) return std::exp(-seconds / std::max(decode_s_, 1e-3));
  const auto longer =
      in_order_.end() - std::upper_bound(in_order_.begin(), in_order_.end(), seconds);
  // One more that never ends: nobody is certain to.
  return (static_cast<double>(longer) + 1) / (static_cast<double>(in_order_.size()) + 1);
}

DecodeForecast::Load DecodeForecast::at(Time then, Time now) const {
  Load load;
  const auto add = [&](const Job& job, double chance) {
    load.requests += chance;
    load.context_tokens += chance * static_cast<double>(job.tokens);
  };
  for (const auto& [id, job] : decoding_jobs_)
    add(job, survives(std::max(to_seconds(then - job.from), 0.0)) /
                 survives(std::max(to_seconds(now - job.from), 0.0)));
  for (const auto& [id, job] : coming_)
    if (job.from <= then) add(job, survives(to_seconds(then - std::max(job.from, now))));
  return load;
}

double pool_tbt_ms(const DecodeForecast::Load& load, size_t nodes, uint64_t tokens,
                   const Cost& cost) {
  if (nodes == 0) return 0;
  const double share = 1 / static_cast<double>(nodes);
  const spec::CostModel& c = cost.spec().cost;
  return 1e3 * (c.t0 + c.t1 * load.requests * share +
                c.t2 * (load.context_tokens * share + static_cast<double>(tokens)));
}

Verdict admit(const Decision& d, uint64_t tokens, const AdmissionOptions& o,
              const DecodeForecast& forecast, size_t decode_nodes, const Cost& cost, Time now) {
  if (d.verdict != Verdict::kAccept || o.admission == "none") return d.verdict;
  if (o.ttft_slo.count() > 0 && d.ttft_ms() > to_ms(o.ttft_slo)) return Verdict::kTtft;
  if (o.tbt_slo.count() == 0 || o.admission == "baseline") return Verdict::kAccept;
  if (d.chosen.whole)  // its own batch is known, not when it thins out
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
  if (o.admission == "none" || o.tbt_slo.count() == 0) return Verdict::kAccept;
  const double step = cost.step_ms(node.requests + 1, node.context_tokens + tokens);
  return step > to_ms(o.tbt_slo) ? Verdict::kTbt : Verdict::kAccept;
}

}  // namespace mc::sched
