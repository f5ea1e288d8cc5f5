#include "serve/prefill/prefill_job.h"

namespace mc::serve {

void PrefillJob::end_spans(Time now) {
  if (!span) return;
  const std::string why = failure ? failure->what : "";
  const bool began = started != Time{}, computes = computing != Time{},
             has_all = computed != Time{};
  span.step("queue", queued, began ? started : now);
  if (!fetch_span && began && done.peer_tokens > 0) fetch_span = span.child(started);
  fetch_span.end("fetch", computes ? computing : now,
                 {{"mc.pool_tokens", int64_t{done.pool_tokens}},
                  {"mc.peer_tokens", int64_t{done.peer_tokens}}});
  if (computes)
    span.step("compute", computing, has_all ? computed : now,
              {{"mc.computed_tokens", static_cast<int64_t>(prompt.size() - done.cached_tokens)}});
  transfer_span.end("transfer", now,
                    {{"mc.to", kv.decode}, {"mc.bytes", static_cast<int64_t>(done.kv_bytes)}}, why,
                    telemetry::SpanKind::kClient);
  span.end("prefill", now,
           {{"mc.request", kv.request},
            {"mc.prompt_tokens", static_cast<int64_t>(prompt.size())},
            {"mc.cached_tokens", int64_t{done.cached_tokens}}},
           why, telemetry::SpanKind::kServer);
}

void PrefillJobs::add(const PrefillJobPtr& job) {
  by_request_.emplace(job->kv.request, job->tx);
  by_tx_.emplace(job->tx, job);
}

void PrefillJobs::erase(const PrefillJob& job) {
  by_request_.erase(job.kv.request);
  by_tx_.erase(job.tx);
}

PrefillJobPtr PrefillJobs::find(TxId tx) const {
  const auto it = by_tx_.find(tx);
  return it == by_tx_.end() ? nullptr : it->second;
}

PrefillJobPtr PrefillJobs::find(const std::string& request) const {
  const auto named = by_request_.find(request);
  return named == by_request_.end() ? nullptr : find(named->second);
}

void PrefillJobs::fetch(const PrefillJobPtr& job, FetchState from) {
  job->fetch = from;
  fetching_.push_back(job);
}

void PrefillJobs::fetched(const PrefillJobPtr& job) {
  job->fetch = FetchState::kNone;
  std::erase(fetching_, job);
}

}  // namespace mc::serve
