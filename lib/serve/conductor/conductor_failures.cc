// Ends requests: deadlines, failed and lost workers, retries, release of resources, cancellation.
#include <cmath>

#include "base/log.h"
#include "base/units.h"
#include "serve/conductor/conductor.h"
#include "serve/conductor/conductor_metrics.h"
#include "serve/conductor/request_spans.h"

namespace mc::serve {
namespace {

constexpr Duration kAbortBudget = std::chrono::seconds(2);

bool no_room(const Error& e) { return e.code == Code::kNoSpace || e.code == Code::kBusy; }

// The client's error for a worker's failure.
RequestError failed_at(const char* op, const NodeId& node, const Error& e) {
  RequestError f;
  f.status = e.code == Code::kTimeout ? 504 : 503;
  f.code = e.code == Code::kTimeout ? "upstream_timeout" : "worker_failed";
  f.what = strf("%s on %s: %s", op, node.c_str(), e.what.c_str());
  f.retry_after_s = 1;
  return f;
}

}  // namespace

// A deadline of a state passed; calls have their own.
void Conductor::expired(Job& job) {
  switch (job.state) {
    case State::kWaiting:
      return end(job, RequestError{503, "no_capacity",
                                   strf("no worker had room within %s",
                                        to_text(options_.queue_timeout).c_str()),
                                   1});
    case State::kEnding: return finished(job);  // it has all its tokens; only numbers are missing
    case State::kReserving:
    case State::kAllocating:
    case State::kPrefilling:
    case State::kAnswering:
    case State::kProxying: break;
  }
  const bool external = job.state == State::kProxying;
  const std::string node = external ? job.proxied.asked() : job.decode.node;
  const Duration limit =
      external && !job.proxied.begun ? options_.prefill_timeout : options_.token_timeout;
  const std::string why = strf("no token from %s within %s", node.c_str(), to_text(limit).c_str());
  fail_attempt(job, {node}, RequestError{504, "upstream_timeout", why, 1});
}

void Conductor::step_failed(Job& job, const WorkerRef& where, const char* op, const Error& error) {
  if (no_room(error) && job.state != State::kAnswering && job.state != State::kEnding) {
    release(job, error.what);
    job.full.insert(where.node);
    return start(job);
  }
  if (job.state == State::kEnding) return finished(job);
  if (error.code == Code::kUnavailable) job.lost = where;
  // A prefill may fail because of the decode worker it sends to: try others of both.
  std::set<NodeId> avoid{where.node};
  if (job.state == State::kPrefilling) avoid.insert(job.decode.node);
  // Once tokens come the KV has arrived, and decoding needs the prefill worker no longer.
  if (job.state == State::kAnswering) return;
  fail_attempt(job, avoid, failed_at(op, where.node, error));
}

void Conductor::fail_attempt(Job& job, const std::set<NodeId>& avoid, RequestError why) {
  if (job.state == State::kProxying)
    if (ExternalEngine* e = external_->find(job.proxied.asked()))
      external_->answered(*e, false, loop_.now());
  release(job, why.what);
  if (job.progress.output_tokens > 0 || job.failures >= options_.retries) return end(job, why);
  ++job.failures;
  instruments_->retries.add();
  log_warn("conductor", "request %s is tried again: %s", job.ask.id.c_str(), why.what.c_str());
  job.avoid.insert(avoid.begin(), avoid.end());
  start(job);
}

// Releases all that the attempt holds, here and on the workers.
void Conductor::release(Job& job, const std::string& reason) {
  release_external(job);
  const bool answered = job.state == State::kEnding;
  if (job.charged) {
    if (Worker* p = workers_.find(job.prefill.node, job.prefill.epoch)) {
      p->ledger.finish(job.id, loop_.now());
      if (!job.prefilled) --p->requests;
    }
    if (Worker* d = workers_.find(job.decode.node, job.decode.epoch)) {
      --d->requests;
      d->context_tokens -= job.ask.prompt.size() + job.progress.output_tokens;
      if (job.answering) {
        --d->answering;
        d->answering_tokens -= job.ask.prompt.size();
      }
    }
    forecast_.ended(job.id, loop_.now());
    if (job.prefilled && job.progress.output_tokens == 0 && !answered)
      instruments_->wasted.add(static_cast<uint64_t>(std::llround(job.progress.prefill_ms)));
    if (!job.committed) index_.withdraw(job.guess);
  }
  if (job.reserved && !answered) abort_at(job.decode, job.wire, reason);
  if (job.allocated && !job.committed) abort_at(job.prefill, job.wire, reason);
  if (job.asked_source && !job.prefilled) abort_at(job.source, job.wire, reason);
  by_wire_.erase(job.wire);
  job.charged = job.reserved = job.allocated = job.prefilled = job.committed = false;
  job.answering = job.asked_source = false;
  ++job.attempt;  // answers still on their way no longer match
}

void Conductor::abort_at(const WorkerRef& ref, const std::string& wire, const std::string& reason) {
  Worker* const worker = workers_.find(ref.node, ref.epoch);
  if (worker == nullptr) return;
  worker->client->call(Abort{wire, reason.substr(0, 500)}, kAbortBudget,
                       [](const Result<rpc::Empty>&) {});  // else the worker's lease ends it
}

void Conductor::end(Job& job, const std::optional<RequestError>& failed) {
  release(job, failed ? failed->what : "finished");
  const int status = failed ? failed->status : job.passed_status;
  metrics_
      .counter("mc_conductor_requests_total", "requests answered",
               {{"code", std::to_string(status)},
                {"reason", failed ? failed->code : job.progress.finish}})
      .add();
  log_end(job, failed ? failed->code + ": " + failed->what : job.progress.finish);
  end_request_span(
      job.span, job.ask, job.progress, job.arrived, loop_.clock().now(),
      {status, failed ? failed->code : job.progress.finish, failed ? failed->what : ""});
  decisions_.ended(job.id, job.progress, status, failed ? failed->code : job.progress.finish,
                   failed ? failed->what : "");
  const auto it = jobs_.find(job.id);
  const std::unique_ptr<Job> owned = std::move(it->second);
  jobs_.erase(it);
  waiting_.erase(owned->turn());
  make_room();
  owned->sink.on_done(owned->progress, failed);
}

void Conductor::cancel(Id id, const std::string& why, const CancelledAs& as) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  Job& job = *it->second;
  release(job, why);
  metrics_
      .counter("mc_conductor_requests_total", "requests answered",
               {{"code", std::to_string(as.status)}, {"reason", as.reason}})
      .add();
  log_end(job, why);
  end_request_span(job.span, job.ask, job.progress, job.arrived, loop_.clock().now(),
                   SpanOutcome{as.status, as.reason, as.status == 200 ? "" : why});
  decisions_.ended(id, job.progress, as.status, as.reason, why);
  waiting_.erase(job.turn());
  jobs_.erase(it);
  make_room();
}

// Starts the oldest waiting request in place of one that ended. On a later turn: this may be called
// while others are being ended.
void Conductor::make_room() {
  if (waiting_.empty()) return;
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) next_waiting();
  });
}

void Conductor::drain() { draining_ = true; }

void Conductor::cancel_all(const std::string& reason) {
  while (!jobs_.empty()) end(*jobs_.begin()->second, RequestError{503, "draining", reason, 1});
}

// Moves its requests without a first token to other workers. A prefill worker whose KV has all
// arrived is not needed any longer.
void Conductor::worker_gone(const Worker& worker, const std::string& why) {
  std::vector<Id> hit;
  for (const auto& [id, job] : jobs_) {
    if (!job->charged || job->state == State::kEnding) continue;
    const bool decode = job->decode.node == worker.node && job->decode.epoch == worker.epoch;
    const bool prefill = job->prefill.node == worker.node && job->prefill.epoch == worker.epoch;
    if (decode || (prefill && job->state != State::kAnswering && !job->prefilled))
      hit.push_back(id);
  }
  for (const Id id : hit) {
    const auto it = jobs_.find(id);
    if (it == jobs_.end()) continue;
    const WorkerRef& lost = it->second->lost;
    const bool known = lost.node == worker.node && lost.epoch == worker.epoch;  // failed already
    if ((worker.changed || known) && it->second->progress.output_tokens == 0) {
      release(*it->second, why);
      start(*it->second);
      continue;
    }
    fail_attempt(*it->second, {worker.node},
                 failed_at(worker.prefill ? "prefill" : "decode", worker.node,
                           Error{Code::kUnavailable, "the worker is gone: " + why}));
  }
}

}  // namespace mc::serve
