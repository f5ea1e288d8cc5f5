// The steps of one attempt, and what is released at its end.
#include <algorithm>
#include <cmath>
#include <utility>

#include "sched/request/request_record.h"

namespace mc::sched {
namespace {

constexpr Duration kCommitted = std::chrono::seconds(10);  // its events are on their way

}  // namespace

const char* name(RequestState state) {
  switch (state) {
    case RequestState::kWaiting: return "waiting";
    case RequestState::kReserving: return "reserving";
    case RequestState::kAllocating: return "allocating";
    case RequestState::kPrefilling: return "prefilling";
    case RequestState::kDecoding: return "decoding";
    case RequestState::kFinishing: return "finishing";
    case RequestState::kProxied: return "proxied";
  }
  return "?";
}

const char* name(Step step) {
  switch (step) {
    case Step::kReserve: return "reserve";
    case Step::kPin: return "pin";
    case Step::kAllocate: return "allocate";
    case Step::kPrefill: return "prefill";
    case Step::kCommit: return "commit";
  }
  return "?";
}

DecisionMade decision_made(RequestRecord& r) {
  std::vector<Candidate> candidates = std::exchange(r.choice.decision.candidates, {});
  DecisionMade made{r.ref(), r.choice, r.progress};
  made.choice.decision.candidates = std::move(candidates);
  return made;
}

void begin_on_workers(MachineTurn& t, RequestRecord& r) {
  const Candidate& c = r.choice.decision.chosen;
  ++r.attempt;
  r.begun = t.now;
  r.state = RequestState::kReserving;
  r.deadline = t.now + t.options.step_timeout + t.options.slack;
  if (!r.goes_on()) r.progress = {};
  r.progress.prefill = r.prefill_at().node;
  r.progress.decode = r.decode_at().node;
  // From its arrival: what it waited for room is certain by now.
  if (!r.goes_on())
    r.progress.predicted_ttft_ms = to_ms(t.now - r.arrived) + r.choice.decision.ttft_ms();
  t.ask(decision_made(r));
  if (!r.goes_on()) t.measured(Measure::kPredictedTtft, r.progress.predicted_ttft_ms);
  r.guess = t.fleet.charge(r.id, r.ask, r.choice, r.tags, t.now);
  r.decode_spoke = t.fleet.spoke(r.decode_at());
  r.decode = DecodeSide::kReserveSent;
  t.ask(SendStep{.of = r.ref(),
                 .step = Step::kReserve,
                 .to = r.decode_at(),
                 .with = r.prefill_at(),
                 .budget = t.options.step_timeout});
  if (!r.source_at()) return;
  // TransferKVCache: another worker holds the longest match, and fetching it is the fastest. That
  // worker locks it; the chosen one reads it while the request queues there. Meanwhile the decode
  // worker reserves. The request goes on if this fails.
  r.source = SourceSide::kPinSent;
  t.ask(SendStep{.of = r.ref(),
                 .step = Step::kPin,
                 .to = r.source_at(),
                 .with = {},
                 .budget = std::min(t.options.pin_timeout, t.options.step_timeout),
                 .tokens = c.local_tokens + c.peer_tokens,
                 .coming = c.peer.empty() ? 0 : c.pending_tokens,
                 .patience = 2 * (t.options.pin_timeout + from_seconds(c.wait_ms / 1e3))});
}

// Prefill follows at once, by the request's name: it needs nothing of the answer.
void allocate(MachineTurn& t, RequestRecord& r) {
  r.state = RequestState::kAllocating;
  r.behind = {};
  r.prefill = PrefillSide::kAllocateSent;
  r.deadline = t.now + t.options.step_timeout + t.options.slack;
  if (FleetWorker* const p = t.fleet.roster().find(r.prefill_at())) p->ledger.sent(r.id);
  for (const Step step : {Step::kAllocate, Step::kPrefill})
    t.ask(SendStep{
        .of = r.ref(),
        .step = step,
        .to = r.prefill_at(),
        .with = {},
        .budget = step == Step::kAllocate ? t.options.step_timeout : t.options.prefill_timeout,
        .number = r.choice.number});
}

// The prompt's blocks are now cached there; events will say so too. The request may end before the
// answer comes.
void commit(MachineTurn& t, RequestRecord& r) {
  if (r.committed() || r.prefill == PrefillSide::kEnded) return;
  if (t.fleet.roster().find(r.prefill_at()) == nullptr) {  // and its cache with it
    r.prefill = PrefillSide::kEnded;
    return;
  }
  r.prefill = r.computed() ? PrefillSide::kCommitted : PrefillSide::kCommittedEarly;
  t.fleet.index().prolong(r.guess, t.now + kCommitted);
  t.ask(SendStep{.of = r.ref(),
                 .step = Step::kCommit,
                 .to = r.prefill_at(),
                 .with = {},
                 .budget = t.options.step_timeout});
}

void first_token(MachineTurn& t, RequestRecord& r) {
  Progress& p = r.progress;
  r.state = RequestState::kDecoding;
  r.decode = DecodeSide::kDecoding;
  r.first_token = t.now;
  if (!r.goes_on()) {
    p.ttft_ms = to_ms(t.now - r.arrived);
    t.measured(Measure::kTtft, p.ttft_ms);
    t.measured(Measure::kTtftError, p.predicted_ttft_ms - p.ttft_ms);
  }
  t.fleet.answering(r.id, r.decode_at(), r.ask.prompt_tokens, t.now);
}

// Compares prediction and measurement: for the next predictions, and as metrics.
void note_computed(MachineTurn& t, RequestRecord& r, const PrefillTimes& m) {
  Progress& p = r.progress;
  const Candidate& c = r.choice.decision.chosen;
  const uint64_t n = r.ask.prompt_tokens;
  const Progress told = r.goes_on() ? p : Progress();
  t.fleet.computed(r.id, r.prefill_at(), t.now);
  r.prefill = r.committed() ? PrefillSide::kCommitted : PrefillSide::kComputed;
  p.cached_tokens = static_cast<uint32_t>(std::min<uint64_t>(m.cached_tokens, n));
  p.pool_tokens = std::min(m.pool_tokens, *p.cached_tokens);
  p.peer_tokens = std::min(m.peer_tokens, *p.cached_tokens);
  p.queue_ms = m.queue_ms;
  p.load_ms += m.load_ms;
  p.prefill_ms = m.prefill_ms;
  p.transfer_ms = m.transfer_ms;
  r.measured_ms = m.queue_ms + m.load_ms + m.prefill_ms + m.transfer_ms;
  const uint64_t here =
      *p.cached_tokens - std::min(*p.cached_tokens, p.pool_tokens + p.peer_tokens);
  const auto tokens = [&](Measure what, uint64_t count) {
    t.measured(what, static_cast<double>(count));
  };
  tokens(Measure::kStaleTokens, c.local_tokens - std::min(c.local_tokens, here));
  const bool asked = r.source != SourceSide::kNone;
  if (asked) tokens(Measure::kReplicatedTokens, p.peer_tokens);
  tokens(Measure::kInputTokens, n);
  tokens(Measure::kHitTokens, *p.cached_tokens);
  tokens(Measure::kReachableTokens, r.choice.decision.best_tokens);
  tokens(Measure::kPoolMemoryExpected, c.pool_memory_tokens);
  tokens(Measure::kPoolDiskExpected, c.pool_disk_tokens);
  tokens(Measure::kPoolTokens, m.pool_tokens);

  Cost& cost = t.fleet.cost();
  FleetWorker* const w = t.fleet.roster().find(r.prefill_at());
  if (w != nullptr)  // it may be more than is sent of most prompts
    w->congestion.learn(std::max(cost.transfer_ms(n), cost.send_ms(m.kv_bytes)), m.transfer_ms,
                        t.now);
  const double fetch_ms = std::clamp(m.fetch_ms, 0.0, std::max(m.load_ms, 0.0));
  cost.learn_prefill(n, *p.cached_tokens, m.prefill_ms + m.load_ms - fetch_ms,
                     w != nullptr ? w->pipeline : Pipeline{});
  if (m.pool_tokens > 0 && m.pool_tokens == c.pool_tokens())  // the places are known
    cost.learn_pool(r.choice.decision.pool, fetch_ms);
  t.measured(Measure::kPoolError, c.pool_ms - fetch_ms);
  cost.learn_transfer(m.kv_bytes, m.transfer_ms);
  cost.learn_sent(m.kv_bytes, n);
  if (asked && m.peer_tokens > 0) {
    if (w != nullptr)
      w->fetches.learn(r.source_at().node, cost.fetch_ms(p.peer_tokens), m.peer_ms, t.now);
    cost.learn_fetch(p.peer_tokens * cost.spec().kv_bytes_per_token(), m.peer_ms);
    t.measured(Measure::kFetchError, c.fetch_ms - m.peer_ms);
  }
  if (r.goes_on()) p = told;  // of what the client waited for
  t.measured(Measure::kQueueError, c.queue_ms - m.queue_ms);
  t.measured(Measure::kPrefillError, c.prefill_ms - m.prefill_ms);
  t.measured(Measure::kTransferError, c.transfer_ms - m.transfer_ms);
}

// What no part of the time to the first token explains is its first step. Without the prefill
// worker's numbers nothing is known of it.
void note_finished(MachineTurn& t, RequestRecord& r) {
  Progress& p = r.progress;
  if (p.output_tokens == 0 && p.finish.empty()) p.finish = "stop";
  if (!r.measured_ms || p.output_tokens == 0 || r.goes_on()) return;
  const double parts = p.sched_ms + p.queue_ms + p.load_ms + p.prefill_ms + p.transfer_ms;
  p.first_step_ms = std::max(p.ttft_ms - parts, 0.0);
  const Decision& d = r.choice.decision;
  const double waited = p.predicted_ttft_ms - d.ttft_ms();
  const double rest = p.ttft_ms - waited - *r.measured_ms;
  t.measured(Measure::kFirstStepError, d.chosen.first_step_ms - rest);
  t.fleet.cost().learn_first_step(d.tbt_ms, rest);
}

void begin_on_engines(MachineTurn& t, RequestRecord& r) {
  const Decision& d = r.choice.decision;
  ++r.attempt;
  r.begun = t.now;
  r.state = RequestState::kProxied;
  r.pair = t.fleet.engines->charge(r.id, d, r.out, t.now, t.now + from_seconds(d.ttft_ms() / 1e3));
  r.proxy = r.pair.decode.empty() ? ProxySide::kWhole
            : r.pair.at_once      ? ProxySide::kBothHalves
                                  : ProxySide::kPrefillHalf;
  wait_for_engine(t, r);
  r.progress = {};
  r.progress.prefill = r.pair.engine;
  r.progress.decode = r.pair.decode.empty() ? r.pair.engine : r.pair.decode;
  r.progress.predicted_ttft_ms = to_ms(t.now - r.arrived) + d.ttft_ms();
  t.measured(Measure::kPredictedTtft, r.progress.predicted_ttft_ms);
  t.ask(decision_made(r));
  t.ask(ProxyTo{r.ref(), r.pair, false});
  if (r.proxy == ProxySide::kBothHalves) t.ask(ProxyTo{r.ref(), r.pair, true});
}

void wait_for_engine(MachineTurn& t, RequestRecord& r) {
  r.deadline = t.now + t.options.prefill_timeout;
  if (awaits_all(r)) r.deadline = std::min(r.deadline, r.begun + t.options.answer_timeout);
}

bool awaits_all(const RequestRecord& r) { return r.proxy == ProxySide::kWhole && !r.ask.streams; }

void first_half_answered(MachineTurn& t, RequestRecord& r) {
  r.proxy = ProxySide::kWhole;
  wait_for_engine(t, r);
  // Only a stream begins at once: another answer comes when it is whole.
  if (r.pair.at_once && r.ask.streams) r.deadline = t.now + t.options.pair_wait;
  t.fleet.engines->computed(r.id, r.pair, t.now);
  if (!r.pair.at_once) t.ask(ProxyTo{r.ref(), r.pair, true});
}

void release(MachineTurn& t, RequestRecord& r, const std::string& reason) {
  const AttemptRef attempt = r.ref();
  if (r.proxy != ProxySide::kNone) {
    t.ask(StopProxy{attempt, r.asked()});
    t.fleet.engines->refund(r.id, r.pair, false, t.now);
  }
  if (r.on_workers()) {
    if (r.counts_at_prefill()) t.fleet.computed(r.id, r.prefill_at(), t.now);
    if (r.decode == DecodeSide::kReserveSent)
      t.fleet.not_reserved(r.decode_at(), r.ask, r.decode_spoke);
    t.fleet.decoded(r.id, r.decode_at(), r.ask.prompt_tokens, r.own_tokens(), has_token(r), t.now);
    if (r.computed() && r.own_tokens() == 0 && r.decode != DecodeSide::kFinished)
      t.measured(Measure::kWastedPrefill, r.progress.prefill_ms);
    if (!r.committed()) t.fleet.index().withdraw(r.guess);
    if (r.decode != DecodeSide::kFinished) t.ask(AbortAt{attempt, r.decode_at(), reason});
    if (r.prefill == PrefillSide::kAllocateSent || r.prefill == PrefillSide::kAllocated ||
        r.prefill == PrefillSide::kComputed)
      t.ask(AbortAt{attempt, r.prefill_at(), reason});
    const bool asked = r.source != SourceSide::kNone && r.source != SourceSide::kGone;
    if (asked && !r.computed()) t.ask(AbortAt{attempt, r.source_at(), reason});
  }
  r.decode = DecodeSide::kNone;
  r.prefill = PrefillSide::kNone;
  r.source = SourceSide::kNone;
  r.proxy = ProxySide::kNone;
  r.held = {};
  r.behind = {};
  r.first_token = {};
  r.served.answer = 0;
  r.measured_ms.reset();
  ++r.attempt;  // answers still on their way no longer match
}

}  // namespace mc::sched
