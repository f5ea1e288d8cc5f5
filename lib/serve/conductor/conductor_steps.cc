// Messages to the workers, and theirs.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "base/log.h"
#include "base/units.h"
#include "serve/conductor/conductor.h"
#include "serve/conductor/conductor_metrics.h"

namespace mc::serve {
namespace {

constexpr Duration kCommitSoon = std::chrono::milliseconds(2);
constexpr Duration kCommitAgain = std::chrono::milliseconds(100);
constexpr Duration kAbortBudget = std::chrono::seconds(2);
constexpr int kPinLease = 3;  // step timeouts: to reserve, to allocate, to read
constexpr size_t kReasonMax = 500;

// Whether nobody knows what became of the call.
bool unheard(const Error& error) {
  return error.code == Code::kTimeout || error.code == Code::kUnavailable;
}

// An older release would leave the members out without a word.
Result<> can_draw(const GenerateRequest& ask, bool goes_on, const Reservation& r) {
  const bool looks_back = !ask.constraint.none() || !ask.controls.none();
  if (goes_on && looks_back && !r.continues)
    return fail(Code::kUnsupported,
                "its release cannot go on with an answer that has a constraint or penalties: "
                "update it");
  if (!ask.constraint.none() && r.sampling < kConstraints)
    return fail(Code::kUnsupported,
                "its release knows no constrained output, as response_format: update it, or leave "
                "it out");
  if (ask.controls.none() || r.sampling >= kControls) return {};
  return fail(Code::kUnsupported,
              "its release knows no penalties, min_p, logit_bias or logprobs: update it, or leave "
              "them out");
}

uint32_t wait_ms(Duration patience) {
  return static_cast<uint32_t>(std::clamp(to_ms(patience), 0.0, 600'000.0));
}

// Whether each token has the logprobs that were asked for. Of a peer nothing is believed.
bool tells_all(const TokenUpdate& u, uint32_t logprobs, uint64_t vocab) {
  const uint64_t tops = std::min<uint64_t>(logprobs - 1, vocab);
  return u.logprobs.size() == u.tokens.size() &&
         std::all_of(u.logprobs.begin(), u.logprobs.end(), [&](const TokenLogprobs& t) {
           return t.top.size() == tops && t.top_logprobs.size() == tops;
         });
}

// What a worker says that something took. One that is no time would be in sums of metrics for ever.
double told_ms(double ms) {
  constexpr double kLongestMs = 1e9;  // 11 days
  return std::isfinite(ms) ? std::clamp(ms, 0.0, kLongestMs) : 0;
}

Result<> outcome_of(const auto& reply) {
  if (reply) return {};
  return fail(reply.error());
}

}  // namespace

// What an attempt is called between us and the workers: "epoch-request-attempt".
std::string Conductor::wire(const sched::AttemptRef& attempt) const {
  return strf("%llx-%llu-%u", static_cast<unsigned long long>(epoch_),
              static_cast<unsigned long long>(attempt.request), attempt.attempt);
}

sched::AttemptRef Conductor::attempt_of(const std::string& name) const {
  sched::AttemptRef attempt;
  const size_t first = name.find('-'), last = name.rfind('-');
  if (first == std::string::npos || last == first) return attempt;
  std::from_chars(name.data() + first + 1, name.data() + last, attempt.request);
  std::from_chars(name.data() + last + 1, name.data() + name.size(), attempt.attempt);
  return wire(attempt) == name ? attempt : sched::AttemptRef{};
}

template <class M>
void Conductor::call(Job& job, const sched::SendStep& step, const M& message,
                     std::function<void(Job&, const Result<typename M::Reply>&)> then) {
  Worker* const worker = workers_.find(step.to);
  if (worker == nullptr) return;  // the machine knows
  if (!worker->commits.empty()) send_commits(step.to);
  const auto span = job.span ? std::make_shared<telemetry::OpenSpan>(job.span.child(loop_.now()))
                             : std::shared_ptr<telemetry::OpenSpan>();
  // What a reservation begins there outlives the call.
  const bool outlives = std::is_same_v<M, Reserve> || span == nullptr;
  const telemetry::TraceContext& above = outlives ? job.span.context() : span->context();
  worker->client->call(
      message, step.budget,
      [this, alive = std::weak_ptr<bool>(alive_), of = step.of, span, node = step.to.node,
       then = std::move(then)](const Result<typename M::Reply>& reply) {
        if (alive.expired()) return;
        if (span != nullptr)
          span->end(M::kName, loop_.clock().now(), {{"mc.node", node}},
                    reply ? "" : reply.error().what, telemetry::SpanKind::kClient);
        Job* const j = find(of);
        if (j != nullptr && machine_.next_token(of) > 0) then(*j, reply);
      },
      telemetry::to_wire(above));
}

std::vector<int32_t> Conductor::Job::prompt() const {
  std::vector<int32_t> all = ask.prompt;
  all.insert(all.end(), told.begin(), told.end());
  return all;
}

void Conductor::answered(sched::StepAnswered answer, const char* op) {
  instruments_->tx(op, answer.outcome.has_value());
  run(std::move(answer));
}

void Conductor::reserve(Job& job, const sched::SendStep& step) {
  const GenerateRequest& g = job.ask;
  Reserve m;
  m.request = wire(step.of);
  m.conductor = rpc_->address();
  m.prompt = job.prompt();
  m.answered = static_cast<uint32_t>(job.told.size());
  m.epoch = step.to.epoch;
  m.max_tokens = g.max_tokens - std::min(m.answered, g.max_tokens);
  m.min_tokens = g.min_tokens - std::min(m.answered, g.min_tokens);
  m.ignore_eos = g.ignore_eos;
  m.stop_tokens = g.stop_tokens;
  m.seed = g.seed;
  m.temperature = g.temperature;
  m.top_k = g.top_k;
  m.top_p = g.top_p;
  m.controls = g.controls;
  m.constraint = g.constraint.to_send();
  m.cache_salt = g.cache_salt;
  if (const Worker* p = workers_.find(step.with)) m.prefill = p->control;
  m.kv_deadline_ms = static_cast<uint32_t>(to_ms(options_.step_timeout + options_.prefill_timeout));
  call<Reserve>(job, step, m, [this, of = step.of](Job& j, const Result<Reservation>& reply) {
    sched::StepAnswered answer{.of = of, .step = sched::Step::kReserve};
    answer.outcome = reply ? can_draw(j.ask, !j.told.empty(), *reply) : fail(reply.error());
    if (reply) j.reservation = *reply;
    instruments_->tx("reserve", reply.has_value());
    run(answer);
  });
}

void Conductor::pin(Job& job, const sched::SendStep& step) {
  const Worker* const source = workers_.find(step.to);
  if (source == nullptr) return;
  TxAllocate m;
  m.request = wire(step.of);
  m.epoch = step.to.epoch;
  m.pin_for_peer = static_cast<uint32_t>(step.tokens / options_.block_size);
  m.prompt.assign(job.ask.prompt.begin(),
                  job.ask.prompt.begin() + static_cast<std::ptrdiff_t>(step.tokens));
  m.cache_salt = job.ask.cache_salt;
  m.lease_ms = static_cast<uint32_t>(to_ms(kPinLease * options_.step_timeout));
  // The request that computes it was sent on its way before, and may still be at its decode worker.
  if (step.coming > 0) m.expect_ms = static_cast<uint32_t>(to_ms(options_.step_timeout));
  call<TxAllocate>(
      job, step, m,
      [this, of = step.of, control = source->control, patience = step.patience](
          Job& j, const Result<TxAllocated>& reply) {
        if (reply)
          j.remote_prefix = {control,      reply->tx,     reply->segment,   reply->block_offsets,
                             reply->ranks, reply->coming, wait_ms(patience)};
        answered({.of = of, .step = sched::Step::kPin, .outcome = outcome_of(reply)}, "lend");
      });
}

void Conductor::allocate(Job& job, const sched::SendStep& step) {
  TxAllocate m;
  m.request = wire(step.of);
  m.prompt = job.prompt();
  m.cache_salt = job.ask.cache_salt;
  m.epoch = step.to.epoch;
  if (job.reservation) m.target = *job.reservation;
  m.remote_prefix = job.remote_prefix;
  m.priority = job.ask.priority;
  m.number = step.number;
  m.context_blocks = static_cast<uint32_t>(job.ask.cache.context_tokens / options_.block_size);
  m.keep_ms = static_cast<uint32_t>(to_ms(job.ask.cache.ttl));
  m.ephemeral = job.ask.cache.ephemeral;
  m.lease_ms = static_cast<uint32_t>(to_ms(options_.tx_lease));
  m.conductor = rpc_->address();
  call<TxAllocate>(job, step, m, [this, of = step.of](Job&, const Result<TxAllocated>& reply) {
    answered({.of = of,
              .step = sched::Step::kAllocate,
              .outcome = outcome_of(reply),
              .queue_ms = reply ? reply->queue_ms : 0},
             "allocate");
  });
}

void Conductor::prefill(Job& job, const sched::SendStep& step) {
  call<Prefill>(job, step, Prefill{0, wire(step.of)},
                [this, of = step.of](Job&, const Result<PrefillDone>& reply) {
                  sched::StepAnswered answer{.of = of, .step = sched::Step::kPrefill};
                  answer.outcome = outcome_of(reply);
                  if (reply)
                    answer.times = {.cached_tokens = reply->cached_tokens,
                                    .pool_tokens = reply->pool_tokens,
                                    .peer_tokens = reply->peer_tokens,
                                    .queue_ms = told_ms(reply->queue_ms),
                                    .load_ms = told_ms(reply->load_ms),
                                    .prefill_ms = told_ms(reply->prefill_ms),
                                    .transfer_ms = told_ms(reply->transfer_ms),
                                    .fetch_ms = told_ms(reply->fetch_ms),
                                    .peer_ms = told_ms(reply->peer_ms),
                                    .kv_bytes = reply->kv_bytes};
                  answered(std::move(answer), "prefill");
                });
}

// The commit goes out before the next message to that worker, or soon: alone it would wake both
// processes for nothing else. The request may end before the answer comes.
void Conductor::commit(const sched::SendStep& step) {
  Worker* const worker = workers_.find(step.to);
  if (worker == nullptr) return;  // and its cache with it
  const Job* const job = find(step.of);
  worker->commits.push_back({wire(step.of), job == nullptr ? "" : job->ask.id});
  if (worker->commits.size() == 1) send_commits(step.to, kCommitSoon);
}

// One that is not answered goes out again, until the worker takes it, knows no more of it (its
// lease is over, or it was taken before), or is gone: the blocks are locked as long.
void Conductor::send_commits(const sched::WorkerRef& to, Duration later) {
  const auto alive = std::weak_ptr<bool>(alive_);
  if (later > Duration::zero()) {
    loop_.after(later, [this, alive, to] {
      if (!alive.expired()) send_commits(to, {});
    });
    return;
  }
  Worker* const worker = workers_.find(to);
  if (worker == nullptr) return;
  for (const Worker::Commit& c : std::exchange(worker->commits, {}))
    worker->client->call(TxCommit{0, c.wire}, options_.step_timeout,
                         [this, alive, to, c](const Result<TxCommitted>& reply) {
                           if (alive.expired()) return;
                           instruments_->tx("commit", reply.has_value());
                           if (reply || (c.again && reply.error().code == Code::kNotFound)) return;
                           const bool retried = unheard(reply.error());
                           if (!c.again || !retried)
                             log_warn("conductor", "request %s: commit on %s: %s",
                                      c.request.c_str(), to.node.c_str(),
                                      reply.error().what.c_str());
                           Worker* const w = retried ? workers_.find(to) : nullptr;
                           if (w == nullptr) return;
                           w->commits.push_back({c.wire, c.request, true});
                           if (w->commits.size() == 1) send_commits(to, kCommitAgain);
                         });
}

// Without an answer it is repeated when the worker joins again, if it was owed.
void Conductor::abort_at(const sched::WorkerRef& ref, const std::string& name,
                         const std::string& reason) {
  Worker* const worker = workers_.find(ref);
  if (worker == nullptr) return;
  worker->client->call(
      Abort{name, reason.substr(0, kReasonMax)}, kAbortBudget,
      [this, alive = std::weak_ptr<bool>(alive_), ref, name](const Result<rpc::Empty>& reply) {
        if (!alive.expired() && reply) workers_.owed_aborts.confirmed(ref, name);
      });
}

// A worker sends tokens again when it got no answer: those that came before are left out.
Result<rpc::Empty> Conductor::tokens(const TokenBatch& batch) {
  size_t gaps = 0;
  for (const TokenUpdate& u : batch.updates) gaps += update(u, batch.node) ? 0 : 1;
  run(sched::TokensComplete{batch.node});
  if (gaps > 0)
    return fail(Code::kStale, "tokens of %zu requests are missing before these: send them again",
                gaps);
  return rpc::Empty{};
}

// False: tokens before these are missing.
bool Conductor::update(const TokenUpdate& u, const NodeId& from) {
  const sched::AttemptRef of = attempt_of(u.request);
  const uint64_t next = machine_.next_token(of);
  const Job* const job = find(of);
  if (next == 0 || job == nullptr) {
    // Of a request given up, or of a conductor that was here before.
    if (const Worker* const w = workers_.find(from); w != nullptr && u.finish.empty())
      abort_at(w->ref(), u.request, "no request waits for it");
    return true;
  }
  sched::TokensArrived event{.of = of,
                             .first = u.first,
                             .count = static_cast<uint32_t>(u.tokens.size()),
                             .finish = u.finish,
                             .error = u.error,
                             .kv_errors = u.kv_errors,
                             .load_ms = told_ms(u.load_ms),
                             .decode_ms = told_ms(u.decode_ms)};
  const uint32_t logprobs = job->ask.controls.logprobs;
  if (logprobs > 0 && !tells_all(u, logprobs, spec().vocab)) {
    event.finish = "error";
    event.error = "tokens without logprobs, which the request asks for";
  }
  run(event, {.update = &u});
  return u.first <= next;
}

}  // namespace mc::serve
