// Gives the request machine its events, and carries out what it asks for.
#include <cmath>
#include <utility>

#include "base/log.h"
#include "serve/conductor/conductor.h"
#include "serve/conductor/conductor_metrics.h"

namespace mc::serve {
namespace {

template <class T>
void drop_first(std::vector<T>& list, uint64_t n) {
  const auto end = static_cast<std::ptrdiff_t>(std::min<uint64_t>(n, list.size()));
  list.erase(list.begin(), list.begin() + end);
}

}  // namespace

Conductor::Job* Conductor::find(const sched::AttemptRef& attempt) {
  const auto it = jobs_.find(attempt.request);
  return it == jobs_.end() ? nullptr : it->second.get();
}

template <>
void Conductor::carry_out(const sched::ProxyTo& p, const InHand& hand);  // conductor_external.cc

template <>
void Conductor::carry_out(const sched::SendStep& s, const InHand&) {
  if (s.step == sched::Step::kCommit) return commit(s);  // also for a request that is gone
  Job* const job = find(s.of);
  if (job == nullptr) return;
  switch (s.step) {
    case sched::Step::kReserve: return reserve(*job, s);
    case sched::Step::kPin: return pin(*job, s);
    case sched::Step::kAllocate: return allocate(*job, s);
    case sched::Step::kPrefill: return prefill(*job, s);
    case sched::Step::kCommit: return;
  }
}

template <>
void Conductor::carry_out(const sched::AbortAt& a, const InHand&) {
  const std::string name = wire(a.of);
  const auto now = workers_.all().find(a.at.node);
  if (now == workers_.all().end() || now->second->epoch <= a.at.epoch)  // else it was replaced
    workers_.owed_aborts.owe(a.at, name);
  abort_at(a.at, name, a.reason);
}

template <>
void Conductor::carry_out(const sched::StopProxy& s, const InHand&) {
  if (Job* const job = find(s.of)) stop_exchange(*job);
}

template <>
void Conductor::carry_out(const sched::EngineAnswered& a, const InHand&) {
  if (ExternalEngine* const e = external_->find(a.engine))
    external_->answered(*e, a.well, loop_.now());
}

template <>
void Conductor::carry_out(const sched::DecisionMade& made, const InHand&) {
  Job* const job = find(made.of);
  if (job == nullptr) return;
  job->of = made.of;
  job->reservation.reset();
  job->remote_prefix = {};
  job->proxied.reset();
  if (made.choice.decision.chosen.whole) {
    job->proxied = std::make_unique<ProxiedAttempt>();
    job->proxied->local_tokens = made.choice.decision.chosen.local_tokens;
  }
  log_decision(*job, made);
}

template <>
void Conductor::carry_out(const sched::TriedAgain& t, const InHand&) {
  instruments_->retries.add();
  if (const auto it = jobs_.find(t.request); it != jobs_.end())
    log_warn("conductor", "request %s is tried again, behind %zu tokens: %s",
             it->second->ask.id.c_str(), it->second->told.size(), t.why.c_str());
}

template <>
void Conductor::carry_out(const sched::Measured& m, const InHand&) {
  instruments_->measured(m, *pool_);
}

template <>
void Conductor::carry_out(const sched::DeliverTokens& d, const InHand& hand) {
  Job* const job = find(d.of);
  if (job == nullptr || hand.update == nullptr) return;
  if (job->ask.proxied) job->ask.proxied->forget_body();
  const Progress* const before = std::exchange(job->reported, &d.progress);
  const std::vector<int32_t>& all = hand.update->tokens;
  job->told.insert(job->told.end(), all.begin() + std::min<std::ptrdiff_t>(d.skip, std::ssize(all)),
                   all.end());
  const std::shared_ptr<ResponseSink> sink = job->sink;  // it may cancel the request
  if (d.skip == 0) {
    sink->on_tokens(d.progress, hand.update->tokens, hand.update->logprobs);
  } else {
    auto tokens = hand.update->tokens;
    auto logprobs = hand.update->logprobs;
    drop_first(tokens, d.skip);
    drop_first(logprobs, d.skip);
    sink->on_tokens(d.progress, tokens, logprobs);
  }
  if (Job* const still = find(d.of)) still->reported = before;
}

template <>
void Conductor::carry_out(const sched::DeliverBytes& d, const InHand& hand) {
  Job* const job = find(d.of);
  if (job == nullptr || !job->proxied) return;
  job->ask.proxied->forget_body();
  ProxiedAttempt& w = *job->proxied;
  const EngineExchange& e = w.answer;
  const std::string type = e.type;
  const std::shared_ptr<ResponseSink> sink = job->sink;
  const Progress* const before = std::exchange(job->reported, &d.progress);
  if (!w.rename) {
    sink->on_upstream_bytes(d.progress, e.status, type, hand.bytes);
  } else {
    const std::string renamed = w.rename->pass(hand.bytes);
    sink->on_upstream_bytes(d.progress, e.status, type, renamed);
  }
  if (Job* const still = find(d.of)) still->reported = before;
}

template <>
void Conductor::carry_out(const sched::PassOn& p, const InHand&) {
  Job* const job = find(p.of);
  if (job == nullptr) return;
  const EngineExchange* const e = p.turned_away  ? &job->turned_away
                                  : job->proxied ? job->proxied->refused
                                                 : nullptr;
  if (e == nullptr) return;
  const Progress* const before = std::exchange(job->reported, &p.progress);
  const std::shared_ptr<ResponseSink> sink = job->sink;
  const int status = e->status;
  const std::string type = e->type, held = e->held;
  sink->on_upstream_bytes(p.progress, status, type, held);
  if (Job* const still = find(p.of)) still->reported = before;
}

template <>
void Conductor::carry_out(const sched::FinishRequest& f, const InHand&) {
  const auto it = jobs_.find(f.request);
  if (it == jobs_.end()) return;
  const std::unique_ptr<Job> job = std::move(it->second);
  jobs_.erase(it);
  const std::string& code = f.error ? f.error->code : f.progress.finish;
  ended(*job, f.progress, {f.status, code, f.error ? f.error->what : ""},
        f.error ? code + ": " + f.error->what : code);
  decisions_.ended(f.request, f.progress, f.status, code, f.error ? f.error->what : "");
  if (options_.recorder != nullptr) options_.recorder->ended(f.request, f.progress.output_tokens);
  make_room();
  job->sink->on_done(f.progress, f.error);
}

// An action may lead to other events, as a sink that cancels: what was asked for a request that is
// gone since is left out.
void Conductor::run(const sched::RequestEvent& event, const InHand& hand) {
  const Time before = loop_.clock().now();
  const bool steps = std::holds_alternative<sched::TokensComplete>(event);
  std::vector<sched::RequestAction> actions;
  machine_.handle(event, steps ? before : loop_.now(), actions);
  carry_out(actions, hand, before);
}

void Conductor::carry_out(const std::vector<sched::RequestAction>& actions, const InHand& hand,
                          Time before) {
  for (const sched::RequestAction& a : actions) {
    // The machine knows no more of one that ends; the end of another may cancel it before its own.
    if (const auto* const f = std::get_if<sched::FinishRequest>(&a))
      if (const auto it = jobs_.find(f->request); it != jobs_.end())
        it->second->reported = &f->progress;
    const auto* const made = std::get_if<sched::DecisionMade>(&a);
    if (made == nullptr) continue;
    const Time decided = loop_.clock().now();
    instruments_->decision.observe(to_seconds(decided - before));
    const sched::Decision& d = made->choice.decision;
    if (Job* const job = find(made->of); job != nullptr && job->span)
      job->span.step("decide", before, decided,
                     {{"mc.verdict", sched::name(d.verdict)}, {"mc.node", d.chosen.name}});
  }
  for (const sched::RequestAction& a : actions)
    std::visit([&](const auto& action) { carry_out(action, hand); }, a);
}

Conductor::Id Conductor::submit(GenerateRequest request, ResponseSink sink) {
  const Id id = next_id_++;
  auto owned = std::make_unique<Job>();
  Job& job = *owned;
  job.ask = std::move(request);
  job.sink = std::make_shared<ResponseSink>(std::move(sink));
  job.arrived = loop_.now();
  job.span = telemetry::OpenSpan(options_.tracer, job.ask.trace, job.arrived);
  jobs_.emplace(id, std::move(owned));
  std::vector<uint64_t> tags = tags_of(job.ask, options_.block_size);
  if (RequestRecorder* const recorder = options_.recorder)
    recorder->arrived(id, wall_now_ns() / 1'000'000, job.ask.prompt, job.ask.cache_salt, tags);
  run(sched::RequestArrived{id, ask_of(job.ask), std::move(tags)});
  return id;
}

void Conductor::cancel(Id id, const std::string& why, const CancelledAs& as) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  const Progress* const known = machine_.progress(id);
  const Progress* const told = it->second->reported;
  const Progress progress = known != nullptr ? *known : told != nullptr ? *told : Progress{};
  run(sched::RequestCancelled{id, why});
  const auto still = jobs_.find(id);
  if (still == jobs_.end()) return;
  const std::unique_ptr<Job> job = std::move(still->second);
  jobs_.erase(still);
  ended(*job, progress, SpanOutcome{as.status, as.reason, as.status == 200 ? "" : why}, why);
  decisions_.ended(id, progress, as.status, as.reason, why);
  if (options_.recorder != nullptr) options_.recorder->ended(id, progress.output_tokens);
  make_room();
}

void Conductor::ended(Job& job, const Progress& progress, const SpanOutcome& outcome,
                      const std::string& how) {
  metrics_
      .counter("mc_conductor_requests_total", "requests answered",
               {{"code", std::to_string(outcome.status)}, {"reason", outcome.reason}})
      .add();
  log_end(job, progress, how);
  stop_exchange(job);  // a pair's first half may not have ended
  end_request_span(job.span, job.ask, progress, job.arrived, loop_.clock().now(), outcome);
}

// Lets one that waits try in place of one that ended. On a later turn: this may be called while
// others are being ended.
void Conductor::make_room() {
  if (machine_.waiting() == 0) return;
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) run(sched::RoomFreed{});
  });
}

void Conductor::drain() { run(sched::DrainStarted{}); }

void Conductor::cancel_all(const std::string& reason) { run(sched::AllEnded{reason}); }

}  // namespace mc::serve
