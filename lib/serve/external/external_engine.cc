#include "serve/external/external_engine.h"

#include <algorithm>

#include "base/json.h"
#include "base/random.h"

namespace mc::serve {
namespace {

constexpr double kStepWeight = 0.2;     // of the newest time between tokens
constexpr double kPrefillShare = 0.25;  // of a whole answer's time, at least, to learn from it
constexpr Duration kMetricsStale = std::chrono::seconds(5);
constexpr double kWaitMaxMs = 24 * 3600e3;  // that an engine's own words make of its queue

}  // namespace

SentMark::SentMark() : name_(strf("mc-%016llx", static_cast<unsigned long long>(fresh_seed()))) {}

http::ClientRequest ExternalEngine::request(const char* method, const std::string& path) const {
  http::ClientRequest r;
  r.method = method;
  r.url = options.url + path;
  r.ca_file = options.ca_file;
  r.headers = {{"via", via}};
  if (!options.api_key.empty()) r.headers.push_back({"authorization", "Bearer " + options.api_key});
  return r;
}

// Before its last answer began it worked on others.
void ExternalEngine::begins(AnswerTimes& times, bool first_token, Time now) {
  times.began = now;
  if (first_token) times.prefill_ms = to_ms(now - std::max(times.sent, answered_at));
  answered_at = now;
}

void ExternalEngine::learn(const AnswerTimes& times, const sched::Cost& cost, uint64_t tokens,
                           uint64_t cached, uint64_t output, Time now) {
  double ms = times.prefill_ms;
  const auto more = static_cast<double>(output);
  if (ms > 0 && output > 0) {
    const double step = to_ms(now - times.began) / more;
    step_ms += (step_ms > 0 ? kStepWeight : 1) * (step - step_ms);
  }
  if (ms <= 0) {  // the answer came at once: the time of its tokens is in it
    const double whole = to_ms(now - times.sent);
    ms = whole - more * (step_ms > 0 ? step_ms : cost.step_ms(1, tokens));
    if (!times.alone || ms < whole * kPrefillShare) return;  // that tells nothing of the prefill
  }
  rate.learn(cost.spec_prefill_ms(tokens, std::min(cached, tokens)), ms, cost.prefill_factor());
}

double ExternalEngine::wait_ms(Time now) const {
  const double ours = ledger.wait_ms(now);
  if (!metrics.waiting || now - metrics_at > kMetricsStale) return ours;
  const double counted = ledger.jobs() > 0 ? static_cast<double>(ledger.jobs() - 1) : 0;
  return ours + std::min(std::max(0.0, *metrics.waiting - counted) * rate.mean_ms(), kWaitMaxMs);
}

Json external_json(const ExternalEngine& e, Time now) {
  Json j = {{"name", e.options.name},
            {"role", "foreign"},
            {"half", e.options.role},
            {"http", e.options.url},
            {"model", e.options.model},
            {"serves", e.options.serves},
            {"up", e.up},
            {"reason", e.why},
            {"ejected", e.outliers.ejected(now)},
            {"ejections", e.outliers.ejections()},
            {"assigned", e.assigned},
            {"requests", e.requests},
            {"context_tokens", e.context_tokens},
            {"queue_ms", e.wait_ms(now)},
            {"queued_tokens", e.ledger.tokens()},
            {"prefills_learned", e.rate.seen()},
            {"prefill_factor", e.rate.factor()},
            {"prefill_fixed_ms", e.rate.fixed_ms()},
            {"prefill_ms", e.rate.mean_ms()},
            {"adapters", e.adapters}};
  const std::pair<const char*, std::optional<double>> told[] = {{"running", e.metrics.running},
                                                                {"waiting", e.metrics.waiting},
                                                                {"kv_usage", e.metrics.kv_usage}};
  for (const auto& [name, value] : told)
    if (value) j[name] = *value;
  if (!e.cache) return j;
  j["block_size"] = e.cache->block_tokens();
  j["index_blocks"] = e.cache->blocks();
  j["orphan_blocks"] = e.cache->orphans();
  j["skipped_blocks"] = e.cache->skipped();
  j["unknown_extra"] = e.cache->unknown_extra();
  j["events_seen"] = e.stream->order().next();
  j["event_gaps"] = e.stream->order().gaps();
  j["event_resyncs"] = e.stream->order().clears();
  j["event_faults"] = e.stream->faults();
  return j;
}

}  // namespace mc::serve
