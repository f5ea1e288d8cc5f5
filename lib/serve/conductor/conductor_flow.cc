// Drives a request through its steps, in the order of messages.h. Its end: conductor_failures.cc.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>

#include "base/log.h"
#include "base/units.h"
#include "serve/conductor/conductor.h"
#include "serve/conductor/conductor_metrics.h"

namespace mc::serve {
namespace {

constexpr Duration kEndingWait = std::chrono::seconds(2);  // for the prefill worker's numbers
constexpr Duration kGuessSlack = std::chrono::seconds(2);
constexpr Duration kCommitSoon = std::chrono::milliseconds(2);
constexpr Duration kCommitted = std::chrono::seconds(10);  // its events are on their way
constexpr uint32_t kRetryAfterMax = 30;
constexpr int kPinLease = 3;  // step timeouts: to reserve, to allocate, to read
constexpr Duration kPinWait = std::chrono::milliseconds(500);  // then it is computed

uint32_t retry_after(Duration excess) {
  return static_cast<uint32_t>(
      std::clamp(std::ceil(to_seconds(excess)), 1.0, double{kRetryAfterMax}));
}

template <class T>
void drop_first(std::vector<T>& list, uint64_t n) {
  const auto end = static_cast<std::ptrdiff_t>(std::min<uint64_t>(n, list.size()));
  list.erase(list.begin(), list.begin() + end);
}

// An older release would leave the members out without a word.
Result<> can_draw(const GenerateRequest& ask, const Reservation& r) {
  if (!ask.constraint.none() && r.sampling < kConstraints)
    return fail(Code::kUnsupported,
                "its release knows no constrained output, as response_format: update it, or leave "
                "it out");
  if (ask.controls.none() || r.sampling >= kControls) return {};
  return fail(Code::kUnsupported,
              "its release knows no penalties, min_p, logit_bias or logprobs: update it, or leave "
              "them out");
}

// The decode half of the process that computes the prompt, if it has one that is not full: no KV
// moves then.
Worker& colocated_decode(WorkerRegistry& workers, const Worker& prefill, Worker& chosen,
                         const std::set<NodeId>& full) {
  Worker* const w = workers.find(prefill.node + ".d");
  const bool halves = w != nullptr && !w->prefill && w->control == prefill.control;
  return halves && !w->draining && !full.contains(w->node) ? *w : chosen;
}

}  // namespace

template <class M>
void Conductor::call(Job& job, const WorkerRef& ref, const M& message, Duration budget,
                     std::function<void(Job&, const Result<typename M::Reply>&)> then) {
  Worker* const worker = workers_.find(ref.node, ref.epoch);
  if (worker == nullptr) return;  // its end was noticed: worker_gone has dealt with the job
  if (!worker->commits.empty()) send_commits(*worker);
  const auto span = job.span ? std::make_shared<telemetry::OpenSpan>(job.span.child(loop_.now()))
                             : std::shared_ptr<telemetry::OpenSpan>();
  // What a reservation begins there outlives the call.
  const bool outlives = std::is_same_v<M, Reserve> || span == nullptr;
  const telemetry::TraceContext& above = outlives ? job.span.context() : span->context();
  worker->client->call(
      message, budget,
      [this, alive = std::weak_ptr<bool>(alive_), id = job.id, attempt = job.attempt, span,
       node = ref.node, then = std::move(then)](const Result<typename M::Reply>& reply) {
        if (alive.expired()) return;
        if (span != nullptr)
          span->end(M::kName, loop_.clock().now(), {{"mc.node", node}},
                    reply ? "" : reply.error().what, telemetry::SpanKind::kClient);
        const auto it = jobs_.find(id);
        if (it != jobs_.end() && it->second->attempt == attempt) then(*it->second, reply);
      },
      telemetry::to_wire(above));
}

Conductor::Id Conductor::submit(GenerateRequest request, ResponseSink sink) {
  const Id id = next_id_++;
  auto owned = std::make_unique<Job>();
  Job& job = *owned;
  job.id = id;
  job.ask = std::move(request);
  job.sink = std::move(sink);
  job.arrived = loop_.now();
  job.span = telemetry::OpenSpan(options_.tracer, job.ask.trace, job.arrived);
  jobs_.emplace(id, std::move(owned));
  if (draining_) {
    end(job, RequestError{503, "draining", "the conductor is draining: use another", 1});
    return id;
  }
  for (const BlockHash& h : chain_hashes(job.ask.prompt, options_.block_size, job.ask.cache_salt))
    job.tags.push_back(h.tag());
  if (waiting_.empty() || job.turn() < *waiting_.begin())
    start(job);
  else
    wait_for_room(job);  // not past those who came before
  return id;
}

void Conductor::start(Job& job) {
  const Time before = loop_.clock().now();
  decide(job);
  const Time decided = loop_.clock().now();
  instruments_->decision.observe(to_seconds(decided - before));
  if (job.span)
    job.span.step(
        "decide", before, decided,
        {{"mc.verdict", sched::name(job.decision.verdict)}, {"mc.node", job.decision.chosen.name}});
  ++decided_;
  if (job.decision.verdict != sched::Verdict::kAccept) return refuse(job);
  const sched::Decision& d = job.decision;
  if (d.chosen.whole) return proxy(job);
  ++job.attempt;
  job.wire = strf("%llx-%llu-%u", static_cast<unsigned long long>(epoch_),
                  static_cast<unsigned long long>(job.id), job.attempt);
  by_wire_[job.wire] = job.id;
  Worker& p = *workers_.find(d.chosen.name);
  Worker& q = colocated_decode(workers_, p, *workers_.find(job.chosen_decode), job.full);
  job.prefill = {p.node, p.epoch};
  job.decode = {q.node, q.epoch};
  job.progress = {};
  job.progress.prefill = p.node;
  job.progress.decode = q.node;
  job.reservation.reset();
  job.remote_prefix = {};
  job.asked_source = job.answered_source = false;
  job.source = d.chosen.fetch_ms > 0 ? source_of(job) : WorkerRef{};
  // From its arrival: what it waited for room is certain by now.
  job.progress.predicted_ttft_ms = to_ms(loop_.now() - job.arrived) + d.ttft_ms();
  log_decision(job);
  instruments_->predicted.observe(job.progress.predicted_ttft_ms / 1e3);
  // Charged before anything is sent: the next request of the same burst must see it.
  const uint64_t n = job.ask.prompt.size();
  p.ledger.charge(job.id, d.chosen.pool_ms + d.chosen.prefill_ms, n - d.chosen.reused_tokens,
                  loop_.now(), job.ask.priority);
  ++p.assigned;
  ++p.requests;
  ++q.assigned;
  ++q.requests;
  q.context_tokens += n;
  q.reserved_blocks +=
      blocks_reserved(q, {blocks_needed(false, n, job.ask.max_tokens), blocks_needed(true, n, 0)});
  forecast_.dispatched(job.id, n, loop_.now() + from_seconds(d.ttft_ms() / 1e3));
  job.charged = true;
  job.guess =
      index_.guess(p.slot, job.tags, loop_.now() + from_seconds(d.ttft_ms() / 1e3) + kGuessSlack);
  reserve(job);
}

// The worker with the longest match; of equals the one with the least congested link, then the
// least busy one.
Conductor::WorkerRef Conductor::source_of(const Job& job) const {
  const auto match = index_.matches(job.tags, workers_.slots());
  const Worker* best = nullptr;
  const Worker* const reader = workers_.find(job.prefill.node, job.prefill.epoch);
  const auto key = [&](const Worker& w) {
    return std::tuple(-int64_t{match.of(w.slot)},
                      reader == nullptr ? 1 : reader->fetches.factor(w.node, loop_.now()),
                      w.congestion.factor(loop_.now()), w.requests, std::string_view(w.node));
  };
  for (const auto& [node, w] : workers_.all())
    if (w->prefill && !w->draining && node != job.prefill.node && match.of(w->slot) > 0 &&
        (best == nullptr || key(*w) < key(*best)))
      best = w.get();
  return best == nullptr ? WorkerRef{} : WorkerRef{best->node, best->epoch};
}

void Conductor::refuse(Job& job) {
  const sched::Decision& d = job.decision;
  RequestError f;
  f.code = sched::name(d.verdict);
  f.what = d.reason;
  if (d.verdict == sched::Verdict::kTtft || d.verdict == sched::Verdict::kTbt) {
    const sched::Refusal r = sched::refusal(d, d.verdict, job.ask.tokens(), promises(job),
                                            forecast_, workers_.live(false), cost_, loop_.now());
    f.status = 429;
    f.what = r.why;
    f.retry_after_s = retry_after(r.retry_after);
    job.progress.predicted_ttft_ms = d.ttft_ms();
    log_decision(job);
    return end(job, f);
  }
  const bool own_full = std::any_of(job.full.begin(), job.full.end(), [this](const auto& name) {
    return workers_.all().contains(name);
  });
  if (job.turned_away && !own_full) {  // only engines could take it, and said that they are full
    const Id id = job.id;
    job.pass_on(*job.turned_away);
    if (!jobs_.contains(id)) return;
    job.progress.output_tokens = 0;
    return end(job, std::nullopt);
  }
  if (external_->up() > 0 && !job.full.empty()) return wait_for_room(job);
  const bool own = workers_.live(true) > 0 && workers_.live(false) > 0;
  if (own && job.ask.refusal) return end(job, RequestError(*job.ask.refusal));
  if (own) return job.full.empty() ? end(job, too_large(job)) : wait_for_room(job);
  f.status = 503;
  f.code = "no_capacity";
  f.retry_after_s = 1;
  end(job, f);
}

// The decode worker's batch has no place for the computed prompt: its prefill was wasted.
void Conductor::refuse_computed(Job& job) {
  const sched::Refusal r =
      sched::refusal(job.decision, sched::Verdict::kTbt, job.ask.prompt.size(), options_.admission,
                     forecast_, workers_.live(false), cost_, loop_.now());
  if (!job.prefilled)  // its token overtook the prefill worker's answer
    instruments_->wasted.add(static_cast<uint64_t>(std::llround(job.decision.chosen.prefill_ms)));
  end(job, RequestError{429, sched::name(sched::Verdict::kTbt),
                        strf("decode worker %s is over the promise of %s between tokens",
                             job.decode.node.c_str(), to_text(options_.admission.tbt_slo).c_str()),
                        retry_after(r.retry_after)});
}

// No worker is full, yet none can hold the request: their pools are too small.
RequestError Conductor::too_large(const Job& job) const {
  const bool prefill = job.decision.verdict == sched::Verdict::kNoPrefill;
  uint64_t largest = 0;
  for (const auto& [node, w] : workers_.all())
    if (w->prefill == prefill && !w->draining) largest = std::max(largest, w->load.blocks_total);
  const size_t n = job.ask.prompt.size();
  RequestError f;
  f.status = 400;
  f.code = "context_length_exceeded";
  f.what = strf(
      "%zu prompt and %u output tokens need %llu blocks of a %s worker; the largest has %llu: send "
      "fewer tokens",
      n, job.ask.max_tokens,
      static_cast<unsigned long long>(blocks_needed(prefill, n, job.ask.max_tokens)),
      prefill ? "prefill" : "decode", static_cast<unsigned long long>(largest));
  return f;
}

void Conductor::wait_for_room(Job& job) {
  if (waiting_.size() >= options_.queue_max && !waiting_.contains(job.turn()))
    return end(job, RequestError{429, "queue_full",
                                 strf("%zu requests wait for room already", waiting_.size()), 1});
  job.state = State::kWaiting;
  job.deadline = job.arrived + options_.queue_timeout;
  job.full.clear();
  job.turned_away.reset();
  waiting_.insert(job.turn());
}

// The first in turn tries again; when it has a place, the next one follows.
void Conductor::next_waiting() {
  if (waiting_.empty()) return;
  const Id id = waiting_.begin()->second;
  waiting_.erase(waiting_.begin());
  start(*jobs_.at(id));
}

void Conductor::reserve(Job& job) {
  job.state = State::kReserving;
  job.deadline = Time::max();  // the call has one
  job.reserved = true;
  const GenerateRequest& g = job.ask;
  Reserve m;
  m.request = job.wire;
  m.conductor = rpc_->address();
  m.prompt = g.prompt;
  m.epoch = job.decode.epoch;
  m.max_tokens = g.max_tokens;
  m.min_tokens = g.min_tokens;
  m.ignore_eos = g.ignore_eos;
  m.stop_tokens = g.stop_tokens;
  m.seed = g.seed;
  m.temperature = g.temperature;
  m.top_k = g.top_k;
  m.top_p = g.top_p;
  m.controls = g.controls;
  m.constraint = g.constraint;
  m.cache_salt = g.cache_salt;
  if (const Worker* p = workers_.find(job.prefill.node, job.prefill.epoch)) m.prefill = p->control;
  m.kv_deadline_ms = static_cast<uint32_t>(to_ms(options_.step_timeout + options_.prefill_timeout));
  call<Reserve>(job, job.decode, m, options_.step_timeout,
                [this](Job& j, const Result<Reservation>& reply) {
                  instruments_->tx("reserve", reply.has_value());
                  if (!reply) return step_failed(j, j.decode, "reserve", reply.error());
                  if (const Result<> able = can_draw(j.ask, *reply); !able)
                    return step_failed(j, j.decode, "reserve", able.error());
                  j.reservation = *reply;
                  if (!j.asked_source || j.answered_source) allocate(j);
                });
  pin_for_peer(job);
}

// TransferKVCache: another worker holds the longest match, and fetching it is the fastest. That
// worker locks it; the chosen one reads it while the request queues there. Meanwhile the decode
// worker reserves. The request goes on if this fails.
void Conductor::pin_for_peer(Job& job) {
  if (job.source.node.empty()) return;
  const Worker* const source = workers_.find(job.source.node, job.source.epoch);
  if (source == nullptr) return;
  TxAllocate m;
  m.request = job.wire;
  m.epoch = job.source.epoch;
  const sched::Candidate& c = job.decision.chosen;
  const uint64_t tokens = c.local_tokens + c.peer_tokens;
  m.pin_for_peer = static_cast<uint32_t>(tokens / options_.block_size);
  m.prompt.assign(job.ask.prompt.begin(),
                  job.ask.prompt.begin() + static_cast<std::ptrdiff_t>(tokens));
  m.cache_salt = job.ask.cache_salt;
  m.lease_ms = static_cast<uint32_t>(to_ms(kPinLease * options_.step_timeout));
  job.asked_source = true;
  call<TxAllocate>(job, job.source, m, std::min(kPinWait, options_.step_timeout),
                   [this, control = source->control](Job& j, const Result<TxAllocated>& reply) {
                     instruments_->tx("lend", reply.has_value());
                     j.answered_source = true;
                     if (reply)
                       j.remote_prefix = {control, reply->tx, reply->segment, reply->block_offsets,
                                          reply->ranks};
                     if (j.reservation) allocate(j);
                   });
}

// Prefill follows at once, by the request's name: it needs nothing of the answer.
void Conductor::allocate(Job& job) {
  job.state = State::kAllocating;
  job.allocated = true;
  TxAllocate m;
  m.request = job.wire;
  m.prompt = job.ask.prompt;
  m.cache_salt = job.ask.cache_salt;
  m.epoch = job.prefill.epoch;
  m.target = *job.reservation;
  m.remote_prefix = job.remote_prefix;
  m.priority = job.ask.priority;
  m.context_blocks = static_cast<uint32_t>(job.ask.cache.context_tokens / options_.block_size);
  m.keep_ms = static_cast<uint32_t>(to_ms(job.ask.cache.ttl));
  m.ephemeral = job.ask.cache.ephemeral;
  m.lease_ms = static_cast<uint32_t>(to_ms(options_.tx_lease));
  call<TxAllocate>(job, job.prefill, m, options_.step_timeout,
                   [this](Job& j, const Result<TxAllocated>& reply) {
                     instruments_->tx("allocate", reply.has_value());
                     if (!reply) return step_failed(j, j.prefill, "allocate", reply.error());
                     allocated(j, *reply);
                   });
  call<Prefill>(job, job.prefill, Prefill{0, job.wire}, options_.prefill_timeout,
                [this](Job& j, const Result<PrefillDone>& reply) {
                  instruments_->tx("prefill", reply.has_value());
                  if (!reply) return step_failed(j, j.prefill, "prefill", reply.error());
                  prefilled(j, *reply);
                });
}

void Conductor::allocated(Job& job, const TxAllocated& allocated) {
  job.progress.sched_ms = to_ms(loop_.now() - job.arrived);
  Worker* const p = workers_.find(job.prefill.node, job.prefill.epoch);
  if (p != nullptr && !job.prefilled) p->ledger.correct(job.id, allocated.queue_ms, loop_.now());
  // The decode worker sends the first token, which may have overtaken this answer.
  if (job.state == State::kAllocating) job.state = State::kPrefilling;
  next_waiting();
}

void Conductor::prefilled(Job& job, const PrefillDone& done) {
  Progress& p = job.progress;
  const uint64_t n = job.ask.prompt.size();
  job.prefilled = true;
  p.cached_tokens = static_cast<uint32_t>(std::min<uint64_t>(done.cached_tokens, n));
  p.pool_tokens = std::min(done.pool_tokens, *p.cached_tokens);
  p.peer_tokens = std::min(done.peer_tokens, *p.cached_tokens);
  const uint64_t here =
      *p.cached_tokens - std::min(*p.cached_tokens, p.pool_tokens + p.peer_tokens);
  const uint64_t thought = job.decision.chosen.local_tokens;
  instruments_->stale_tokens.add(thought - std::min(thought, here));
  if (job.asked_source) instruments_->replicated.add(p.peer_tokens);
  p.queue_ms = done.queue_ms;
  p.load_ms += done.load_ms;
  p.prefill_ms = done.prefill_ms;
  p.transfer_ms = done.transfer_ms;
  job.prefill_parts_ms = done.queue_ms + done.load_ms + done.prefill_ms + done.transfer_ms;
  instruments_->input_tokens.add(n);
  instruments_->hit_tokens.add(*p.cached_tokens);
  instruments_->reachable_tokens.add(job.decision.best_tokens);
  learn(job, done);
  if (Worker* w = workers_.find(job.prefill.node, job.prefill.epoch)) {
    w->ledger.finish(job.id, loop_.now());
    --w->requests;
  }
  if (job.state == State::kEnding) return finished(job);
  if (job.state != State::kPrefilling) return;
  if (decode_refuses(job)) return refuse_computed(job);
  job.deadline = loop_.now() + options_.token_timeout;
}

// Compares prediction and measurement: for the next predictions, and as metrics.
void Conductor::learn(const Job& job, const PrefillDone& done) {
  const sched::Candidate& c = job.decision.chosen;
  if (Worker* w = workers_.find(job.prefill.node, job.prefill.epoch))
    w->congestion.learn(cost_.transfer_ms(job.ask.prompt.size()), done.transfer_ms, loop_.now());
  const double fetch_ms = std::clamp(done.fetch_ms, 0.0, std::max(done.load_ms, 0.0));
  cost_.learn_prefill(job.ask.prompt.size(), *job.progress.cached_tokens,
                      done.prefill_ms + done.load_ms - fetch_ms);
  if (done.pool_tokens > 0 && done.pool_tokens == c.pool_tokens())  // the tiers are known
    cost_.learn_pool(c.pool_memory_tokens, c.pool_disk_tokens, fetch_ms);
  pool_->decided(c, done.pool_tokens);
  instruments_->pool_error.observe((c.pool_ms - fetch_ms) / 1e3);
  cost_.learn_transfer(done.kv_bytes, done.transfer_ms);
  if (job.asked_source && done.peer_tokens > 0) {
    if (Worker* reader = workers_.find(job.prefill.node, job.prefill.epoch))
      reader->fetches.learn(job.source.node, cost_.fetch_ms(job.progress.peer_tokens), done.peer_ms,
                            loop_.now());
    cost_.learn_fetch(job.progress.peer_tokens * spec().kv_bytes_per_token(), done.peer_ms);
    instruments_->fetch_error.observe((c.fetch_ms - done.peer_ms) / 1e3);
  }
  instruments_->queue_error.observe((c.queue_ms - done.queue_ms) / 1e3);
  instruments_->prefill_error.observe((c.prefill_ms - done.prefill_ms) / 1e3);
  instruments_->transfer_error.observe((c.transfer_ms - done.transfer_ms) / 1e3);
}

// False: its decode worker has no place for it any more.
bool Conductor::first_token(Job& job) {
  if (!job.prefilled && decode_refuses(job)) return false;
  Progress& p = job.progress;
  job.state = State::kAnswering;
  job.first_token = loop_.now();
  p.ttft_ms = to_ms(loop_.now() - job.arrived);
  instruments_->ttft.observe(p.ttft_ms / 1e3);
  instruments_->error.observe((p.predicted_ttft_ms - p.ttft_ms) / 1e3);
  forecast_.decoding(job.id, loop_.now());
  if (Worker* d = workers_.find(job.decode.node, job.decode.epoch)) {
    ++d->answering;
    d->answering_tokens += job.ask.prompt.size();
  }
  job.answering = true;
  return true;
}

// A worker sends tokens again when it got no answer: those that came before are left out.
Result<rpc::Empty> Conductor::tokens(const TokenBatch& batch) {
  size_t gaps = 0;
  Worker* const from = workers_.find(batch.node);
  for (const TokenUpdate& u : batch.updates) {
    const auto it = by_wire_.find(u.request);
    if (it != by_wire_.end()) {
      Job& job = *jobs_.at(it->second);
      const uint64_t next = uint64_t{job.progress.output_tokens} + 1;
      if (from != nullptr && !u.tokens.empty())
        from->steps.saw(job.id, next == 1, u.tokens.size(), job.ask.prompt.size() + next - 1);
      if (u.first > next) {
        ++gaps;
      } else if (u.first == 0 || u.first == next) {
        update(job, u);
      } else if (const uint64_t old = next - u.first; old < u.tokens.size() || !u.finish.empty()) {
        TokenUpdate rest = u;
        drop_first(rest.tokens, old);
        drop_first(rest.logprobs, old);
        update(job, rest);
      }
    } else if (const Worker* w = workers_.find(batch.node); w != nullptr && u.finish.empty()) {
      // Of a request given up, or of a conductor that was here before.
      abort_at({w->node, w->epoch}, u.request, "no request waits for it");
    }
  }
  if (Worker* const w = workers_.find(batch.node))
    if (const auto step = w->steps.end(loop_.clock().now()))
      cost_.learn_step(static_cast<double>(step->batch), static_cast<double>(step->context),
                       step->ms);
  if (gaps > 0)
    return fail(Code::kStale, "tokens of %zu requests are missing before these: send them again",
                gaps);
  return rpc::Empty{};
}

void Conductor::update(Job& job, const TokenUpdate& u) {
  const bool first = job.state == State::kAllocating || job.state == State::kPrefilling;
  if (!first && job.state != State::kAnswering) return;
  Progress& p = job.progress;
  p.kv_errors += u.kv_errors;
  instruments_->kv_errors.add(u.kv_errors);
  if (job.ask.controls.logprobs > 0 && u.logprobs.size() != u.tokens.size())
    return fail_attempt(
        job, {job.decode.node},
        RequestError{503, "worker_failed",
                     "decode on " + job.decode.node + ": tokens without logprobs", 1});
  if (!u.finish.empty() && u.finish != "stop" && u.finish != "length") {
    RequestError f;
    f.status = 503;
    f.code = "worker_failed";
    f.what = strf("decode on %s: %s", job.decode.node.c_str(),
                  u.finish == "error" ? u.error.substr(0, 500).c_str()
                                      : ("unknown finish '" + escape(u.finish) + "'").c_str());
    f.retry_after_s = 1;
    return fail_attempt(job, {job.prefill.node, job.decode.node}, f);
  }
  if (first && !u.tokens.empty() && !first_token(job)) return refuse_computed(job);
  if (!job.committed && (!u.tokens.empty() || !u.finish.empty())) commit(job);
  job.deadline = loop_.now() + options_.token_timeout;
  if (!u.tokens.empty()) {
    p.output_tokens += static_cast<uint32_t>(u.tokens.size());
    if (Worker* d = workers_.find(job.decode.node, job.decode.epoch))
      d->context_tokens += u.tokens.size();
  }
  if (!u.finish.empty()) {
    p.finish = u.finish;
    p.load_ms += u.load_ms;
    p.decode_ms = u.decode_ms;
    if (p.output_tokens > 1) {
      const double gap = to_seconds(loop_.now() - job.first_token) / (p.output_tokens - 1);
      instruments_->tbt_error.observe(job.decision.tbt_ms / 1e3 - gap);
    }
    job.state = State::kEnding;
    job.deadline = loop_.now() + kEndingWait;
  }
  const Id id = job.id;
  if (!u.tokens.empty()) job.sink.on_tokens(p, u.tokens, u.logprobs);
  const auto it = jobs_.find(id);  // the sink may have cancelled it
  if (it != jobs_.end() && job.state == State::kEnding && job.prefilled) finished(job);
}

// The prompt's blocks are now cached there; events will say so too. The request may end before the
// answer comes. The commit goes out before the next message to that worker, or soon: alone it would
// wake both processes for nothing else.
void Conductor::commit(Job& job) {
  Worker* const worker = workers_.find(job.prefill.node, job.prefill.epoch);
  if (worker == nullptr) return;  // and its cache with it
  job.committed = true;
  index_.prolong(job.guess, loop_.now() + kCommitted);
  worker->commits.push_back({job.wire, job.ask.id});
  if (worker->commits.size() > 1) return;
  loop_.after(kCommitSoon, [this, alive = std::weak_ptr<bool>(alive_), ref = job.prefill] {
    if (alive.expired()) return;
    if (Worker* const w = workers_.find(ref.node, ref.epoch)) send_commits(*w);
  });
}

void Conductor::send_commits(Worker& worker) {
  for (Worker::Commit& c : std::exchange(worker.commits, {}))
    worker.client->call(TxCommit{0, c.wire}, options_.step_timeout,
                        [this, alive = std::weak_ptr<bool>(alive_), id = std::move(c.request),
                         node = worker.node](const Result<TxCommitted>& reply) {
                          if (alive.expired()) return;
                          instruments_->tx("commit", reply.has_value());
                          if (!reply)
                            log_warn("conductor", "request %s: commit on %s: %s", id.c_str(),
                                     node.c_str(), reply.error().what.c_str());
                        });
}

void Conductor::finished(Job& job) {
  Progress& p = job.progress;
  if (p.output_tokens == 0 && p.finish.empty()) p.finish = "stop";
  const double parts = p.sched_ms + p.queue_ms + p.load_ms + p.prefill_ms + p.transfer_ms;
  p.first_step_ms = std::max(p.ttft_ms - parts, 0.0);
  const sched::Decision& d = job.decision;
  const double waited = p.predicted_ttft_ms - d.ttft_ms();
  if (const double rest = p.ttft_ms - waited - job.prefill_parts_ms; p.output_tokens > 0) {
    instruments_->first_step_error.observe((d.chosen.first_step_ms - rest) / 1e3);
    cost_.learn_first_step(d.tbt_ms, rest);
  }
  end(job, std::nullopt);
}

}  // namespace mc::serve
