#include "sched/pd_control.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"

namespace mc::sched {

const char* name(PdMove move) {
  switch (move) {
    case PdMove::kNone: return "none";
    case PdMove::kToDecode: return "to_decode";
    case PdMove::kToPrefill: return "to_prefill";
  }
  return "?";
}

double trimmed_mean(std::vector<double> values, double trim) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto cut = static_cast<size_t>(std::floor(static_cast<double>(values.size()) * trim));
  double sum = 0;
  for (size_t i = cut; i < values.size() - cut; ++i) sum += values[i];
  return sum / static_cast<double>(values.size() - 2 * cut);
}

void PdControl::sample(double prefill_load, double decode_load) {
  prefill_.push_back(prefill_load);
  decode_.push_back(decode_load);
}

void PdControl::hold(Time now) {
  prefill_.clear();
  decode_.clear();
  next_ = now + options_.interval;
}

PdMove pressure(double prefill_load, double decode_load, double band) {
  const double factor = (decode_load + 1) / (prefill_load + 1);
  if (factor > band) return PdMove::kToDecode;
  return factor < 1 / band ? PdMove::kToPrefill : PdMove::kNone;
}

PdDecision PdControl::decide(size_t prefill_nodes, size_t decode_nodes, Time now) {
  PdDecision d;
  next_ = now + options_.interval;
  if (prefill_.empty()) {
    d.reason = "no samples";
    return d;
  }
  d.prefill_load = trimmed_mean(std::move(prefill_), options_.trim);
  d.decode_load = trimmed_mean(std::move(decode_), options_.trim);
  prefill_.clear();
  decode_.clear();
  d.factor = (d.decode_load + 1) / (d.prefill_load + 1);
  const std::string loads =
      strf("prefill %.2f on %zu, decode %.2f on %zu, factor %.2f", d.prefill_load, prefill_nodes,
           d.decode_load, decode_nodes, d.factor);
  if (d.factor <= options_.band && d.factor >= 1 / options_.band) {
    d.reason = "balanced: " + loads;
    return d;
  }
  if (std::max(d.decode_load, d.prefill_load) < options_.busy) {
    d.reason = "no pool is busy: " + loads;
    return d;
  }
  if (now < quiet_until_) {
    d.reason = "cooling down: " + loads;
    return d;
  }
  const bool to_decode = d.factor > 1;
  const size_t donors = to_decode ? prefill_nodes : decode_nodes;
  if (donors < 2) {
    d.reason = "the donor pool has one node: " + loads;
    return d;
  }
  const auto share = [](size_t before, size_t after) {
    return static_cast<double>(before) / static_cast<double>(after);
  };
  const size_t p_after = to_decode ? prefill_nodes - 1 : prefill_nodes + 1;
  const size_t q_after = to_decode ? decode_nodes + 1 : decode_nodes - 1;
  const double p = d.prefill_load * share(prefill_nodes, p_after);
  const double q = d.decode_load * share(decode_nodes, q_after);
  const double after = (q + 1) / (p + 1);
  if (to_decode ? after < 1 / options_.band : after > options_.band) {
    d.reason = strf("a move would tip it over to %.2f: ", after) + loads;
    return d;
  }
  d.move = to_decode ? PdMove::kToDecode : PdMove::kToPrefill;
  d.reason = loads;
  quiet_until_ = now + options_.cooldown;
  return d;
}

}  // namespace mc::sched
