// How requests end: deadlines, failed and lost workers, retries, refusals.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "base/units.h"
#include "sched/request/request_machine.h"
#include "sched/request/request_record.h"

namespace mc::sched {
namespace {

constexpr double kRetryAfterMax = 30;
constexpr size_t kWhatMax = 1000;                      // bytes of an error's text
constexpr Duration kUnread = std::chrono::seconds(5);  // behind a pause: its end may be seen late

// With the tokens that were told the prompt is longer, and what is to come is less.
bool continues_behind_answer(RequestRecord& r, Time now) {
  const uint32_t told = r.own_tokens();
  if (told >= r.ask.max_tokens) return false;
  r.ask.answered += told;
  r.ask.prompt_tokens += told;
  r.ask.tokens += told;
  r.ask.max_tokens -= told;
  r.asked_for = now;
  r.out.full.clear();
  r.turned_away = {};
  return true;
}

// That nobody took it over is the end of what failed before.
RequestError after_failure(const RequestRecord& r, RequestError why) {
  if (r.failures.count == 0) return why;
  RequestError first = r.failures.last;
  first.what += "; no other worker took over: " + why.what;
  return first;
}

bool means_no_room(const Error& e) { return e.code == Code::kNoSpace || e.code == Code::kBusy; }

}  // namespace

uint32_t retry_after_s(Duration excess) {
  return static_cast<uint32_t>(std::clamp(std::ceil(to_seconds(excess)), 1.0, kRetryAfterMax));
}

// The client's error for a worker's failure.
RequestError failed_at(const char* op, const std::string& node, const Error& e) {
  const bool late = e.code == Code::kTimeout;
  return {late ? 504 : 503, late ? "upstream_timeout" : "worker_failed",
          strf("%s on %s: %s", op, node.c_str(), e.what.c_str()), 1};
}

// No worker is full, yet none can hold the request: their pools are too small.
RequestError too_large(const Fleet& fleet, const RequestRecord& r) {
  const bool prefill = r.choice.decision.verdict == Verdict::kNoPrefill;
  const DecodeNeed need = fleet.need(r.ask);
  return {400, "context_length_exceeded",
          strf("%llu prompt and %u output tokens need %llu blocks of a %s worker; the largest has "
               "%llu: send fewer tokens",
               static_cast<unsigned long long>(r.ask.prompt_tokens), r.ask.max_tokens,
               static_cast<unsigned long long>(prefill ? need.prompt : need.whole),
               prefill ? "prefill" : "decode",
               static_cast<unsigned long long>(fleet.largest(prefill)))};
}

void RequestMachine::refuse(Turn& t, Record& r) {
  const Decision& d = r.choice.decision;
  if (d.verdict == Verdict::kTtft || d.verdict == Verdict::kTbt) {
    const Refusal why = fleet_.refusal(d, d.verdict, r.ask.tokens, r.arrived, t.now);
    r.progress.predicted_ttft_ms = d.ttft_ms();
    t.ask(decision_made(r));
    return end(t, r,
               RequestError{429, sched::name(d.verdict), why.why, retry_after_s(why.retry_after)});
  }
  const Roster& roster = fleet_.roster();
  const bool own_full = std::any_of(r.out.full.begin(), r.out.full.end(),
                                    [&](const auto& node) { return roster.all().contains(node); });
  if (!r.turned_away.engine.empty() && !own_full) {  // only engines could take it, and are full
    Progress& p = r.progress;
    p.retry_after = r.turned_away.retry_after;
    p.finish = strf("status_%d", r.turned_away.status);
    p.output_tokens = 1;  // it has begun
    t.ask(PassOn{r.ref(), true, p});
    p.output_tokens = 0;
    return end(t, r, std::nullopt, r.turned_away.status);
  }
  const bool engines = fleet_.engines != nullptr && fleet_.engines->up() > 0;
  if (engines && !r.out.full.empty()) return wait(t, r);
  const bool own = roster.live(true) > 0 && roster.live(false) > 0;
  if (own && r.ask.refusal) return end(t, r, r.ask.refusal);
  if (own) return r.out.full.empty() ? end(t, r, too_large(fleet_, r)) : wait(t, r);
  end(t, r, after_failure(r, {503, "no_capacity", d.reason, 1}));
}

// The decode worker's batch has no place for the computed prompt: its prefill was wasted.
void RequestMachine::refuse_computed(Turn& t, Record& r) {
  const Refusal why =
      fleet_.refusal(r.choice.decision, Verdict::kTbt, r.ask.prompt_tokens, r.arrived, t.now);
  if (!r.computed())  // its token overtook the prefill worker's answer
    t.measured(Measure::kWastedPrefill, r.choice.decision.chosen.prefill_ms);
  end(t, r,
      RequestError{
          429, sched::name(Verdict::kTbt),
          strf("decode worker %s is over the promise of %s between tokens",
               r.decode_at().node.c_str(), to_text(fleet_.options().admission.tbt_slo).c_str()),
          retry_after_s(why.retry_after)});
}

// A deadline of a state passed; a driver's own for the answer of a step comes before it.
void RequestMachine::expired(Turn& t, Record& r) {
  const auto silent = [&](Step step, Duration limit) {
    step_failed(t, r, step, Error{Code::kTimeout, "no answer within " + to_text(limit)});
  };
  switch (r.state) {
    case RequestState::kWaiting:
      return end(t, r,
                 after_failure(r, {503, "no_capacity",
                                   strf("no worker had room within %s",
                                        to_text(options_.queue_timeout).c_str()),
                                   1}));
    case RequestState::kFinishing: return end(t, r, std::nullopt);  // only numbers are missing
    case RequestState::kReserving:
      if (r.decode == DecodeSide::kReserveSent)
        return silent(Step::kReserve, options_.step_timeout);
      if (r.source == SourceSide::kPinSent) r.source = SourceSide::kRefused;
      return allocate(t, r);
    case RequestState::kAllocating: return silent(Step::kAllocate, options_.step_timeout);
    case RequestState::kPrefilling:
      if (!r.computed()) return silent(Step::kPrefill, options_.prefill_timeout);
      break;
    case RequestState::kProxied:
      if (r.held.now)
        return end(t, r,
                   RequestError{499, "client_gone",
                                strf("the client reads too slowly: it left much of the answer "
                                     "unread for %s",
                                     to_text(options_.held_timeout).c_str())});
      // An engine that is up is at work. One that is down does not answer any more.
      if (!awaits_all(r) || !fleet_.engines->is_up(r.asked())) break;
      if (t.now < r.begun + options_.answer_timeout) return wait_for_engine(t, r);
      return end(t, r,
                 RequestError{504, "upstream_timeout",
                              strf("%s did not complete its answer within %s (--answer-timeout): "
                                   "ask for fewer tokens, or for a stream",
                                   r.asked().c_str(), to_text(options_.answer_timeout).c_str())});
    case RequestState::kDecoding: break;
  }
  const bool external = r.state == RequestState::kProxied;
  const std::string node = external ? r.asked() : r.decode_at().node;
  const bool begun = r.proxy == ProxySide::kAnswering;
  const bool handed = r.pair.at_once && r.ask.streams && r.proxy == ProxySide::kWhole;
  const Duration limit = !external || begun ? options_.token_timeout
                         : handed           ? options_.pair_wait
                                            : options_.prefill_timeout;
  fail_attempt(
      t, r, {node},
      RequestError{504, "upstream_timeout",
                   strf("no token from %s within %s", node.c_str(), to_text(limit).c_str()), 1});
}

void RequestMachine::step_failed(Turn& t, Record& r, Step step, const Error& error) {
  const WorkerRef where = step == Step::kReserve ? r.decode_at() : r.prefill_at();
  if (r.state == RequestState::kDecoding || r.state == RequestState::kFinishing) {
    // Once tokens come the KV has arrived, and decoding needs the prefill worker no longer.
    if (step != Step::kPrefill) return;
    fleet_.computed(r.id, r.prefill_at(), t.now);
    r.prefill = PrefillSide::kEnded;
    if (r.state == RequestState::kFinishing) end(t, r, std::nullopt);
    return;
  }
  if (means_no_room(error)) return no_room(t, r, where.node, error.what);
  if (error.code == Code::kUnavailable) r.lost = where;
  // A prefill may fail because of the decode worker it sends to, and so may be refused what that
  // one reserved: try others of both.
  std::set<std::string> avoid{where.node};
  if (r.state == RequestState::kPrefilling || r.state == RequestState::kAllocating)
    avoid.insert(r.decode_at().node);
  fail_attempt(t, r, avoid, failed_at(name(step), where.node, error));
}

void RequestMachine::no_room(Turn& t, Record& r, const std::string& node, const std::string& why) {
  const uint64_t id = r.id, round = room_.last_round(id);
  release(t, r, why);
  r.out.full.insert(node);
  start(t, r);
  const auto now_at = state(id);
  if (now_at == RequestState::kWaiting && round != 0) go_on(t, round);
}

void RequestMachine::fail_attempt(Turn& t, Record& r, const std::set<std::string>& avoid,
                                  RequestError why) {
  why.what = one_line(why.what, kWhatMax);  // others' words are in it
  const bool proxied = r.state == RequestState::kProxied;
  // An engine may give up a connection that nobody reads for a time.
  const Duration soon = std::min(kUnread, options_.token_timeout);
  const bool unread = r.held.now || (r.held.resumed && t.now - *r.held.resumed < soon);
  if (proxied && !unread)
    for (const std::string& engine : avoid)
      if (fleet_.engines->is_up(engine)) t.ask(EngineAnswered{engine, false});
  const bool begun = r.proxy == ProxySide::kAnswering;  // be it with a refusal
  release(t, r, why.what);
  const bool anew = r.progress.output_tokens == 0 && !begun;
  if (r.failures.count >= options_.retries ||
      !(anew || (options_.continues && !proxied && continues_behind_answer(r, t.now))))
    return end(t, r, std::move(why));
  ++r.failures.count;
  t.ask(TriedAgain{r.id, why.what});
  r.failures.last = std::move(why);
  r.out.avoid.insert(avoid.begin(), avoid.end());
  start(t, r);
}

void RequestMachine::end(Turn& t, Record& r, std::optional<RequestError> failed, int status) {
  if (r.state == RequestState::kFinishing) note_finished(t, r);
  release(t, r, failed ? failed->what : "finished");
  room_.gone(r.id);
  const auto it = requests_.find(r.id);
  const std::unique_ptr<Record> owned = std::move(it->second);
  requests_.erase(it);
  const int said = failed ? failed->status : status;
  t.ask(FinishRequest{owned->id, std::move(failed), said, std::move(owned->progress)});
}

// Moves a request without tokens to other workers. A prefill worker whose KV has all arrived is not
// needed any longer.
void RequestMachine::gone(Turn& t, Record& r, const WorkerGone& e) {
  if (!r.on_workers()) return;
  const bool decode = r.decode_at() == e.worker, prefill = r.prefill_at() == e.worker;
  if (r.source != SourceSide::kNone && r.source_at() == e.worker) {
    const bool awaited = r.source == SourceSide::kPinSent && r.decode == DecodeSide::kReserved;
    r.source = SourceSide::kGone;
    if (awaited) return allocate(t, r);
  }
  const bool has_kv = r.state == RequestState::kDecoding || r.state == RequestState::kFinishing;
  if (prefill && has_kv && !r.prefill_over()) {
    fleet_.computed(r.id, r.prefill_at(), t.now);
    r.prefill = PrefillSide::kEnded;
    if (r.state == RequestState::kFinishing) return end(t, r, std::nullopt);
  }
  const bool lost =
      (decode && r.decode != DecodeSide::kFinished) || (prefill && !has_kv && !r.prefill_over());
  if (!lost) return;
  const bool known = r.lost == e.worker;  // failed already
  if ((e.changed_role || known) && r.progress.output_tokens == 0) {
    release(t, r, e.why);
    return start(t, r);
  }
  fail_attempt(t, r, {e.worker.node},
               failed_at(e.prefill ? "prefill" : "decode", e.worker.node,
                         Error{Code::kUnavailable, "the worker is gone: " + e.why}));
}

}  // namespace mc::sched
