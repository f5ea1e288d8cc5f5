// Reports the conductor's state: readiness, /cluster, /health, metrics, decisions.
#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "sched/load.h"
#include "serve/conductor/conductor.h"
#include "serve/conductor/conductor_metrics.h"

namespace mc::serve {
namespace {

// A worker silent for this long makes the conductor not ready; after worker_ttl it is gone.
Duration silence_max(Duration worker_ttl) { return worker_ttl * 2 / 3; }

// Why no external engine answers requests: of one, the rest are counted; "": there are none.
std::string engines_down(const ExternalEngines& engines) {
  std::string first;
  size_t n = 0;
  for (const auto& [name, e] : engines.all()) {
    if (e->options.url.empty()) continue;  // only its cache is known
    if (++n > 1) continue;
    first = name + ": " +
            (!e->up ? (e->why.empty() ? "it has not answered yet" : e->why)
                    : strf("no engine that is up is its other half, of role %s in the group %s",
                           e->options.role == "prefill" ? "decode" : "prefill",
                           e->options.kv_group.c_str()));
  }
  return n < 2 ? first : first + strf(", and %zu more", n - 1);
}

Json worker_json(const Worker& w, Duration silence, Time now) {
  Json j = {{"name", w.node},
            {"role", w.prefill ? "prefill" : "decode"},
            {"control", w.control},
            {"http", w.http},
            {"epoch", w.epoch},
            {"release", w.release.build},
            {"draining", w.draining},
            {"silent_ms", to_ms(silence)},
            {"assigned", w.assigned},
            {"requests", w.requests},
            {"waiting", w.load.waiting},
            {"running", w.load.running},
            {"blocks_total", w.load.blocks_total},
            {"blocks_free", w.load.blocks_free},
            {"blocks_cached", w.load.blocks_cached}};
  if (w.prefill) {
    j["synced"] = w.synced;
    j["events_seen"] = w.events_seen;
    j["queue_ms"] = w.ledger.wait_ms(now);
    j["queued_tokens"] = w.ledger.tokens();
    j["others_ms"] = w.load.others_ms;
    j["congestion"] = w.congestion.factor(now);
    j["pool_reuse"] = w.pool == sched::PoolUse::kNever  ? "never"
                      : w.pool == sched::PoolUse::kAuto ? "auto"
                                                        : "always";
  } else {
    j["context_tokens"] = w.context_tokens;
    j["others_requests"] = w.others_requests;
    j["answering"] = w.answering;
    j["tbt_ms"] = w.load.tbt_ms;
  }
  return j;
}

}  // namespace

std::string Conductor::not_ready() const {
  if (machine_.draining()) return "draining";
  const bool external = external_->up() > 0;  // needs no workers of ours
  for (const bool prefill : {true, false}) {
    if (external || workers_.live(prefill) > 0) continue;
    const std::string down = engines_down(*external_);
    if (!down.empty() && workers_.all().empty()) return "no external engine is up: " + down;
    return strf("no %s worker", prefill ? "prefill" : "decode") +
           (down.empty() ? "" : ", and no external engine is up: " + down);
  }
  for (const bool prefill : {true, false}) {
    Duration least = Duration::max();
    for (const auto& [node, w] : workers_.all())
      if (w->prefill == prefill && !w->draining)
        least = std::min(least, workers_.silence(node, loop_.now()));
    const Duration most = silence_max(options_.worker_ttl);
    if (!external && least != Duration::max() && least > most)
      return strf("no %s worker was heard for %s", prefill ? "prefill" : "decode",
                  to_text(most).c_str());
  }
  const size_t unsynced = workers_.unsynced();
  if (unsynced > 0 && !was_ready_ && loop_.now() - started_ < options_.snapshot_timeout)
    return strf("rebuilding the view: %zu of %zu workers have not answered", unsynced,
                workers_.all().size());
  was_ready_ = true;
  return {};
}

Json Conductor::cluster() const {
  Json nodes = Json::array();
  const Time now = loop_.now();
  for (const auto& [node, w] : workers_.all())
    nodes.push_back(worker_json(*w, workers_.silence(node, now), now));
  for (const auto& [name, e] : external_->all()) nodes.push_back(external_json(*e, now));
  return {{"epoch", epoch_},
          {"model", cost_.spec().name},
          {"fingerprint", cost_.spec().fingerprint(options_.block_size)},
          {"block_size", options_.block_size},
          {"policy", options_.policy.policy},
          {"admission", options_.admission.admission},
          {"ready", not_ready().empty()},
          {"reason", not_ready()},
          {"in_flight", machine_.in_flight()},
          {"waiting", machine_.waiting()},
          {"pd", autoscaler_.state()},
          {"wasted_prefill_ms", instruments_->wasted.value()},
          {"kv_errors", instruments_->kv_errors.value()},
          {"index_blocks", index_.blocks()},
          {"pool", pool_->state()},
          {"prefill_factor", cost_.prefill_factor()},
          {"transfer_bytes_per_s", cost_.transfer_bytes_per_s()},
          {"fetch_bytes_per_s", cost_.fetch_bytes_per_s()},
          {"step_factors", cost_.steps().factors()},
          {"pool_memory_bytes_per_s", cost_.pool_bytes_per_s(false)},
          {"pool_disk_bytes_per_s", cost_.pool_bytes_per_s(true)},
          {"pool_nodes", pool_->rates(cost_)},
          {"input_tokens", instruments_->input_tokens.value()},
          {"hit_tokens", instruments_->hit_tokens.value()},
          {"reachable_hit_tokens", instruments_->reachable_tokens.value()},
          {"nodes", std::move(nodes)}};
}

void Conductor::update_metrics() {
  pool_->update_metrics();
  metrics_.gauge("mc_conductor_index_blocks", "blocks known to be cached somewhere")
      .set(static_cast<double>(index_.blocks()));
  metrics_.gauge("mc_conductor_requests_in_flight", "requests not yet answered")
      .set(static_cast<double>(machine_.in_flight()));
  metrics_.gauge("mc_conductor_requests_waiting", "of these, waiting for room")
      .set(static_cast<double>(machine_.waiting()));
  for (const bool prefill : {true, false})
    metrics_
        .gauge("mc_conductor_workers", "workers alive and not draining",
               {{"role", prefill ? "prefill" : "decode"}})
        .set(static_cast<double>(workers_.live(prefill)));
  metrics_.gauge("mc_conductor_workers", "workers alive and not draining", {{"role", "foreign"}})
      .set(static_cast<double>(external_->up()));
  metrics_
      .gauge("mc_conductor_engines_ejected",
             "external engines that get no requests for a while, as their answers failed")
      .set(static_cast<double>(external_->ejected(loop_.now())));
}

PoolLoads Conductor::loads() const {
  PoolLoads l;
  const Time now = loop_.now();
  for (const auto& [node, w] : workers_.all()) {
    if (w->draining) continue;
    if (w->prefill) {
      ++l.prefill_nodes;
      const double wait = w->ledger.wait_ms(now);
      l.prefill += sched::prefill_load(wait, w->ledger.jobs() > 0 || w->load.others_ms > 0,
                                       options_.admission.ttft_slo);
    } else {
      ++l.decode_nodes;
      l.decode += sched::decode_load(
          cost_.step_ms(w->requests + w->others_requests, w->context_tokens + w->others_tokens),
          options_.admission.tbt_slo);
    }
  }
  l.prefill /= std::max(1.0, static_cast<double>(l.prefill_nodes));
  l.decode /= std::max(1.0, static_cast<double>(l.decode_nodes));
  return l;
}

Result<RoleRebalancer::Dismissed> Conductor::scale_in(const std::string& node,
                                                      const std::string& role) {
  return rebalancer_.dismiss(node, role, autoscaler_.pressure(), loop_.now());
}

Json Conductor::health() const {
  const std::string reason = not_ready();
  return {{"status", reason.empty() ? "ok" : reason}, {"prefill_workers", workers_.live(true)},
          {"decode_workers", workers_.live(false)},   {"unsynced_workers", workers_.unsynced()},
          {"in_flight", machine_.in_flight()},        {"waiting", machine_.waiting()},
          {"draining", machine_.draining()},          {"up_s", to_seconds(loop_.now() - started_)}};
}

Json Conductor::explain(const std::string& id) const { return decisions_.find(id); }

Json Conductor::route(const GenerateRequest& request) const {
  const uint64_t n = request.tokens();
  const sched::Decision d = dry_run(request);
  Json j = decision_json(d);
  j["prompt_tokens"] = n;
  j["policy"] = options_.policy.policy;
  j["admission"] = options_.admission.admission;
  const bool refused = d.verdict == sched::Verdict::kTtft || d.verdict == sched::Verdict::kTbt;
  if (refused) {
    const sched::Refusal r = fleet_.refusal(d, d.verdict, n, loop_.now(), loop_.now());
    j["refused"] = {{"why", r.why}, {"retry_after_s", to_seconds(r.retry_after)}};
  }
  Json decodes = Json::array();
  const sched::DecodeNeed need = fleet_.need(ask_of(request));
  for (const auto& [node, w] : workers_.all()) {
    if (w->prefill) continue;
    if (decodes.size() == d.decode && d.verdict == sched::Verdict::kAccept) j["decode"] = node;
    decodes.push_back({{"name", node},
                       {"usable", sched::decode_view(*w, need).usable},
                       {"room", sched::decode_view(*w, need).room},
                       {"requests", w->requests},
                       {"tbt_ms", cost_.step_ms(w->requests + w->others_requests + 1,
                                                w->context_tokens + w->others_tokens + n)}});
  }
  j["decode_candidates"] = std::move(decodes);
  return j;
}

void Conductor::log_decision(const Job& job, const sched::DecisionMade& made) {
  const sched::Decision& d = made.choice.decision;
  const bool taken = d.verdict == sched::Verdict::kAccept;
  const Progress& p = made.progress;
  const NodeId& source = made.choice.source.node;
  if (logs(LogLevel::kInfo))  // the texts cost as much as the decision
    log_info("conductor", "request %s: n %llu, best match %llu: %s; %s; candidates %s",
             job.ask.id.c_str(), static_cast<unsigned long long>(job.ask.tokens()),
             static_cast<unsigned long long>(d.best_tokens),
             taken ? (source + (source.empty() ? "" : " sends its prefix to ") + p.prefill +
                      " -> " + p.decode)
                         .c_str()
                   : sched::name(d.verdict),
             sched::explain(d).c_str(),
             sched::candidates_text(d, DecisionLog::kCandidatesMax).c_str());
  decisions_.decided(made.of.request, job.ask.id, job.ask.tokens(), d, taken ? p.decode : "");
}

void Conductor::log_end(const Job& job, const Progress& p, const std::string& how) const {
  log_info("conductor",
           "request %s: n %llu, cached %u (pool %u, peers %u), out %u, %s -> %s; ttft %.1f ms, "
           "predicted "
           "%.1f; %s",
           job.ask.id.c_str(), static_cast<unsigned long long>(job.ask.tokens()),
           p.cached_tokens.value_or(0), p.pool_tokens, p.peer_tokens, p.output_tokens,
           p.prefill.c_str(), p.decode.c_str(), p.ttft_ms, p.predicted_ttft_ms, how.c_str());
}

}  // namespace mc::serve
