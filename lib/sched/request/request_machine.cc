// Events, and who of those that wait is next. How attempts fail and end: request_ends.cc.
#include "sched/request/request_machine.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "sched/request/request_record.h"

namespace mc::sched {
namespace {

constexpr Duration kFinishWait = std::chrono::seconds(2);  // for the prefill worker's numbers

// The second half of a pair answers already: the KV is there, however the first one ends.
void late_half(MachineTurn& t, RequestRecord& r, const UpstreamEnded& e) {
  const bool well = e.outcome && e.status == 200;
  t.ask(EngineAnswered{r.pair.engine, well});
  if (well) r.progress.cached_tokens = e.cached_tokens;
}

}  // namespace

RequestMachine::RequestMachine(RequestOptions options, Fleet& fleet)
    : options_(options),
      fleet_(fleet),
      room_(options.queue_timeout),
      followers_([this](const AttemptRef& attempt) { return find(attempt); }) {}

RequestMachine::~RequestMachine() = default;

RequestRecord* RequestMachine::find(const AttemptRef& attempt) {
  const auto it = requests_.find(attempt.request);
  return it != requests_.end() && it->second->attempt == attempt.attempt ? it->second.get()
                                                                         : nullptr;
}

const Progress* RequestMachine::progress(uint64_t request) const {
  const auto it = requests_.find(request);
  return it == requests_.end() ? nullptr : &it->second->progress;
}

std::optional<RequestState> RequestMachine::state(uint64_t request) const {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return std::nullopt;
  return it->second->state;
}

uint64_t RequestMachine::next_token(const AttemptRef& attempt) const {
  const auto it = requests_.find(attempt.request);
  if (it == requests_.end() || it->second->attempt != attempt.attempt) return 0;
  return uint64_t{it->second->own_tokens()} + 1;
}

std::vector<uint64_t> RequestMachine::all() const {
  std::vector<uint64_t> ids;
  for (const auto& [id, r] : requests_) ids.push_back(id);
  return ids;
}

Time RequestMachine::deadline() const {
  Time first = Time::max();
  for (const auto& [id, r] : requests_) first = std::min(first, r->deadline);
  return first;
}

void RequestMachine::tick(Time now, std::vector<RequestAction>& out) {
  Turn t{options_, fleet_, room_, now, out};
  std::vector<uint64_t> late;
  for (const auto& [id, r] : requests_)
    if (r->deadline <= now) late.push_back(id);
  for (const uint64_t id : late)
    if (const auto it = requests_.find(id); it != requests_.end()) expired(t, *it->second);
  next_round(t);
  for (Record* const r : followers_.freed()) allocate(t, *r);
}

template <>
void RequestMachine::on(const RequestArrived& e, MachineTurn& t) {
  auto owned = std::make_unique<Record>();
  Record& r = *owned;
  r.id = e.request;
  r.ask = e.ask;
  r.tags = e.tags;
  r.arrived = r.asked_for = t.now;
  requests_[r.id] = std::move(owned);
  if (draining_)
    return end(t, r, RequestError{503, "draining", "the conductor is draining: use another", 1});
  const bool behind = first_tries(t.now);
  if (room_.size() == 0 && !behind) return start(t, r);
  const bool full = in_room(t.now) >= options_.queue_max;
  room_.put(r.id, r.turn());
  const bool next = !behind && room_.next(t.now) == r.id;
  if (full)
    room_.gone(r.id);
  else if (next)
    room_.tries(r.id, 0);
  if (next) return start(t, r);
  wait(t, r);  // not past those who came before
}

template <>
void RequestMachine::on(const StepAnswered& e, MachineTurn& t) {
  Record* const found = find(e.of);
  if (found == nullptr) return;
  Record& r = *found;
  switch (e.step) {
    case Step::kReserve:
      if (r.decode != DecodeSide::kReserveSent) return;
      if (!e.outcome) return step_failed(t, r, e.step, e.outcome.error());
      r.decode = DecodeSide::kReserved;
      if (r.source != SourceSide::kPinSent && !followers_.follows(r, fleet_.options().block_tokens))
        return allocate(t, r);
      r.deadline = std::max(t.now, r.begun + options_.pin_timeout) + options_.slack;
      return;
    case Step::kPin:
      if (r.source != SourceSide::kPinSent) return;
      r.source = e.outcome ? SourceSide::kPinned : SourceSide::kRefused;
      if (r.decode == DecodeSide::kReserved) allocate(t, r);
      return;
    case Step::kAllocate: {
      const bool early = r.prefill == PrefillSide::kCommittedEarly && r.progress.sched_ms == 0;
      if (r.state != RequestState::kAllocating && !early) return;
      if (!e.outcome) return step_failed(t, r, e.step, e.outcome.error());
      if (!r.goes_on()) r.progress.sched_ms = to_ms(t.now - r.arrived);
      if (r.counts_at_prefill()) fleet_.queued(r.id, r.prefill_at(), e.queue_ms, t.now);
      if (r.prefill == PrefillSide::kAllocateSent) r.prefill = PrefillSide::kAllocated;
      // The decode worker sends the first token, which may have overtaken this answer.
      if (r.state == RequestState::kAllocating) {
        r.state = RequestState::kPrefilling;
        r.deadline = t.now + (r.computed() ? options_.token_timeout
                                           : options_.prefill_timeout + options_.slack);
      }
      has_place(r);
      return next_round(t);
    }
    case Step::kPrefill:
      if (r.prefill == PrefillSide::kNone || r.prefill_over()) return;
      if (!e.outcome) return step_failed(t, r, e.step, e.outcome.error());
      note_computed(t, r, e.times);
      if (r.state == RequestState::kFinishing) return end(t, r, std::nullopt);
      if (r.state != RequestState::kPrefilling) return;
      if (!r.goes_on() && fleet_.decode_refuses(r.decode_at(), r.ask.prompt_tokens))
        return refuse_computed(t, r);
      r.deadline = t.now + options_.token_timeout;
      return;
    case Step::kCommit: return;  // its events say what became of it
  }
}

template <>
void RequestMachine::on(const TokensArrived& e, MachineTurn& t) {
  Record* const found = find(e.of);
  if (found == nullptr) return;
  Record& r = *found;
  Progress& p = r.progress;
  const uint64_t next = uint64_t{r.own_tokens()} + 1;
  if (e.count > 0)
    if (FleetWorker* const d = fleet_.roster().find(r.decode_at()))
      d->steps.saw(r.id, next == 1, e.count, r.ask.prompt_tokens + next - 1);
  if (e.first > next) return;  // some are missing: the driver asks for them
  const uint64_t old = e.first == 0 ? 0 : next - e.first;
  if (old > 0 && old >= e.count && e.finish.empty()) return;
  const auto skip = static_cast<uint32_t>(std::min<uint64_t>(old, e.count));
  const uint32_t count = e.count - skip;
  const bool first = r.state == RequestState::kAllocating || r.state == RequestState::kPrefilling;
  if (!first && r.state != RequestState::kDecoding) return;
  if (uint64_t{r.own_tokens()} + count > std::max(r.ask.max_tokens, 1u))
    return fail_attempt(
        t, r, {r.decode_at().node},
        RequestError{503, "worker_failed",
                     "decode on " + r.decode_at().node + ": more tokens than were asked for", 1});
  p.kv_errors += e.kv_errors;
  if (e.kv_errors > 0) t.measured(Measure::kKvErrors, e.kv_errors);
  if (!e.finish.empty() && e.finish != "stop" && e.finish != "length") {
    const std::string why =
        e.finish == "error" ? e.error : "unknown finish '" + escape(e.finish) + "'";
    return fail_attempt(
        t, r, {r.prefill_at().node, r.decode_at().node},
        RequestError{503, "worker_failed", "decode on " + r.decode_at().node + ": " + why, 1});
  }
  if (first && count > 0) {
    if (!r.goes_on() && !r.computed() && fleet_.decode_refuses(r.decode_at(), r.ask.prompt_tokens))
      return refuse_computed(t, r);  // no place for it any more
    first_token(t, r);
  }
  if (count > 0 || !e.finish.empty()) {
    commit(t, r);
    has_place(r);
  }
  r.deadline = t.now + options_.token_timeout;
  p.output_tokens += count;
  if (count > 0) fleet_.generated(r.decode_at(), count);
  room_.generated(r.ask.tenant, count);
  if (!e.finish.empty()) {
    p.finish = e.finish;
    p.load_ms += e.load_ms;
    p.decode_ms = e.decode_ms;
    if (r.own_tokens() > 1)
      t.measured(Measure::kTbtError,
                 r.choice.decision.tbt_ms - to_ms(t.now - r.first_token) / (r.own_tokens() - 1));
    r.state = RequestState::kFinishing;
    r.decode = DecodeSide::kFinished;
    r.deadline = t.now + kFinishWait;
  }
  if (count > 0) t.ask(DeliverTokens{r.ref(), skip, p});
  if (r.state == RequestState::kFinishing && r.prefill_over()) end(t, r, std::nullopt);
}

template <>
void RequestMachine::on(const TokensComplete& e, MachineTurn& t) {
  FleetWorker* const d = fleet_.roster().find(e.node);
  if (d == nullptr) return;
  if (const auto step = d->steps.end(t.now))  // other conductors' requests were in it too
    fleet_.cost().learn_step(static_cast<double>(step->batch + d->others_requests),
                             static_cast<double>(step->context + d->others_tokens), step->ms);
}

template <>
void RequestMachine::on(const UpstreamData& e, MachineTurn& t) {
  Record* const found = find(e.of);
  if (found == nullptr) return;
  Record& r = *found;
  Progress& p = r.progress;
  if (r.proxy == ProxySide::kNone || r.proxy == ProxySide::kPrefillHalf) return;
  const bool first = r.proxy != ProxySide::kAnswering;
  if (first) {
    r.proxy = ProxySide::kAnswering;
    if (e.good) {
      p.ttft_ms = to_ms(t.now - r.arrived);
      t.measured(Measure::kTtft, p.ttft_ms);
      t.measured(Measure::kTtftError, p.predicted_ttft_ms - p.ttft_ms);
    }
    fleet_.engines->computed(r.id, r.pair, t.now);
    if (e.good)
      has_place(r);
    else
      room_.gone(r.id);  // nothing is computed for it
  }
  if (e.good) p.output_tokens = std::max<uint32_t>(1, p.output_tokens + e.tokens);
  room_.generated(r.ask.tenant, e.tokens);
  r.served.answer += e.tokens;
  // Who sends a byte now and then does not go on.
  if ((first || e.goes_on) && !r.held.now) r.deadline = t.now + options_.token_timeout;
  t.ask(DeliverBytes{r.ref(), p});
  if (first) next_round(t);
}

// The engine is not late meanwhile: nobody asks it for more. Its client may be.
template <>
void RequestMachine::on(const UpstreamHeld& e, MachineTurn& t) {
  Record* const r = find(e.of);
  if (r == nullptr || r->proxy != ProxySide::kAnswering) return;
  if (r->held.now && !e.held) r->held.resumed = t.now;
  r->held.now = e.held;
  r->deadline = t.now + (e.held ? options_.held_timeout : options_.token_timeout);
}

template <>
void RequestMachine::on(const UpstreamEnded& e, MachineTurn& t) {
  Record* const found = find(e.of);
  if (found == nullptr || found->proxy == ProxySide::kNone) return;
  Record& r = *found;
  Progress& p = r.progress;
  const bool half = e.first_half || r.proxy == ProxySide::kPrefillHalf;
  const std::string asked = half || r.pair.decode.empty() ? r.pair.engine : r.pair.decode;
  const std::string where = "external engine " + asked;
  if (half && r.proxy == ProxySide::kAnswering) return late_half(t, r, e);
  if (half && r.proxy == ProxySide::kWhole) return;  // it has answered
  const auto failed = [&](int status, const std::string& why) {
    fail_attempt(
        t, r, {asked},
        RequestError{status, status == 504 ? "upstream_timeout" : "worker_failed", why, 1});
  };
  if (!e.outcome)
    return failed(e.outcome.error().code == Code::kTimeout ? 504 : 503,
                  where + ": " + e.outcome.error().what);
  if (e.status == 429 || e.status == 503) {  // it is full: others may not be
    if (e.status == 503) t.ask(EngineAnswered{asked, false});
    r.turned_away = {asked, e.retry_after, e.status};
    return no_room(t, r, asked, "it is full");
  }
  const bool silent = e.status == 200 && !half && r.proxy != ProxySide::kAnswering;
  if (silent && !e.may_be_empty) return failed(503, where + " answers without a body");
  if (e.status >= 500 || e.status < 200 || e.status / 100 == 3)
    return failed(503, strf("%s answers with status %d", where.c_str(), e.status));
  t.ask(EngineAnswered{asked, true});
  if (e.status == 200 && half) {
    if (!r.pair.at_once && !fleet_.engines->is_up(r.pair.decode)) {
      const std::string second = r.pair.decode;
      return fail_attempt(
          t, r, {second},
          RequestError{503, "worker_failed", "external engine " + second + " is gone or down", 1});
    }
    p.cached_tokens = e.cached_tokens;
    return first_half_answered(t, r);
  }
  if (e.status != 200) {  // the client's mistake
    p.finish = strf("status_%d", e.status);
    if (r.proxy != ProxySide::kAnswering) {  // else the client has it
      p.output_tokens = 1;                   // it has begun
      t.ask(PassOn{r.ref(), false, p});
      p.output_tokens = 0;
    }
    return end(t, r, std::nullopt, e.status);
  }
  if (silent) {
    p.output_tokens = 1;  // it has begun
    t.ask(PassOn{r.ref(), false, p});
    p.output_tokens = 0;
  }
  p.prompt_tokens = e.prompt_tokens;
  const uint32_t n = e.prompt_tokens.value_or(static_cast<uint32_t>(r.ask.tokens));
  // A pair's is known from its first half: the other got all of the KV.
  if (!p.cached_tokens) p.cached_tokens = e.cached_tokens.value_or(0);
  p.cached_tokens = std::min(*p.cached_tokens, n);
  p.output_tokens = e.output_tokens.value_or(p.output_tokens);
  // An answer that is no stream tells its tokens at its end.
  room_.generated(r.ask.tenant,
                  std::max<uint64_t>(p.output_tokens, r.served.answer) - r.served.answer);
  t.measured(Measure::kInputTokens, n);
  t.measured(Measure::kHitTokens, *p.cached_tokens);
  t.measured(Measure::kReachableTokens, static_cast<double>(r.choice.decision.best_tokens));
  p.finish = "passed";
  fleet_.engines->refund(r.id, r.pair, true, t.now);
  r.proxy = ProxySide::kNone;
  end(t, r, std::nullopt);
}

template <>
void RequestMachine::on(const WorkerGone& e, MachineTurn& t) {
  for (const uint64_t id : all())
    if (const auto it = requests_.find(id); it != requests_.end()) gone(t, *it->second, e);
}

template <>
void RequestMachine::on(const RequestCancelled& e, MachineTurn& t) {
  const auto it = requests_.find(e.request);
  if (it == requests_.end()) return;
  release(t, *it->second, e.reason);
  room_.gone(e.request);
  requests_.erase(it);
}

template <>
void RequestMachine::on(const RoomFreed&, MachineTurn& t) {
  next_round(t);
}

template <>
void RequestMachine::on(const DrainStarted&, MachineTurn&) {
  draining_ = true;
}

template <>
void RequestMachine::on(const ClockStoodStill& e, MachineTurn&) {
  for (const auto& [id, r] : requests_) {
    r->stood += e.time;
    if (r->deadline != Time::max()) r->deadline += e.time;
    r->begun += e.time;
    if (r->held.resumed) *r->held.resumed += e.time;
  }
}

template <>
void RequestMachine::on(const AllEnded& e, MachineTurn& t) {
  while (!requests_.empty())
    end(t, *requests_.begin()->second, RequestError{503, "draining", e.reason, 1});
}

// Decides, and begins an attempt.
void RequestMachine::start(Turn& t, Record& r) {
  Choice choice = fleet_.choose(r.id, r.ask, r.tags, r.out, r.arrived, t.now);
  if (choice.decision.verdict == Verdict::kAccept) return take(t, r, std::move(choice));
  fleet_.decided();
  r.choice = std::move(choice);
  refuse(t, r);
}

void RequestMachine::take(Turn& t, Record& r, Choice choice) {
  fleet_.decided();
  r.choice = std::move(choice);
  r.choice.number = fleet_.decisions();
  if (r.choice.decision.chosen.whole) return begin_on_engines(t, r);
  begin_on_workers(t, r);
  if (r.source != SourceSide::kNone) followers_.add(r);
}

// One that waited and tried in vain has its place in the room still.
void RequestMachine::wait(Turn& t, Record& r) {
  const size_t others = in_room(t.now);
  if (others >= options_.queue_max && !room_.counts(r.id))
    return end(
        t, r,
        RequestError{429, "queue_full", strf("%zu requests wait for room already", others), 1});
  r.state = RequestState::kWaiting;
  r.deadline = r.asked_for + r.stood + options_.queue_timeout;
  r.turned_away = {};
  room_.put(r.id, r.turn());
}

// The first in turn tries to get a place, then those that do not delay it; once one has a place, a
// new round begins.
void RequestMachine::next_round(Turn& t) {
  if (room_.size() == 0 || first_tries(t.now)) return;
  round_ = {round_.number + 1, 0, 0, 0, t.now};
  go_on(t, round_.number);
}

// The answer to the first in turn goes on with its round. A worker that does not answer at once
// keeps nobody waiting.
bool RequestMachine::first_tries(Time now) const {
  return round_.first != 0 && now - round_.begun < std::chrono::seconds(1) &&
         room_.counts(round_.first) && !room_.has(round_.first) &&
         state(round_.first) == RequestState::kReserving;
}

// Those that wait, and the first in turn while it tries: it may come back.
size_t RequestMachine::in_room(Time now) const { return room_.size() + (first_tries(now) ? 1 : 0); }

// Until one tries: its answer goes on with the round.
void RequestMachine::go_on(Turn& t, uint64_t round) {
  if (round != round_.number) return;
  std::optional<Reservation> kept;
  while (const auto id = room_.next(t.now, round)) {
    Record& r = *requests_.at(*id);
    const uint64_t first = *room_.next(t.now);
    if (first == *id) {
      room_.tries(*id, round);
      round_.first = *id;
      r.out.full.clear();
      r.turned_away = {};
      start(t, r);
    } else {
      const Record& head = *requests_.at(first);
      if (round_.tries >= kBackfillMax || round_.looked_at >= kLookedAtMax) return;
      if (head.out.full.empty()) return;  // it did not try
      ++round_.looked_at;
      if (!kept) {
        std::vector<const Record*> running;
        for (const auto& [other, record] : requests_)
          if (record->on_workers()) running.push_back(record.get());
        kept = reserve(t, head, running);
      }
      std::optional<Choice> choice = fits_behind(t, head, *kept, r);
      room_.tries(*id, round);
      if (!choice) {
        room_.put(*id, r.turn());
        continue;
      }
      ++round_.tries;
      r.out.full.clear();
      take(t, r, std::move(*choice));
    }
    const auto now_at = state(*id);
    if (now_at && *now_at != RequestState::kWaiting) return;
  }
}

void RequestMachine::has_place(Record& r) {
  if (std::exchange(r.served.prompt, true)) return room_.gone(r.id);
  const uint64_t reused = r.choice.decision.chosen.reused_tokens;
  room_.served(r.id, r.ask.tenant, r.ask.tokens - std::min(r.ask.tokens, reused));
}

void RequestMachine::handle(const RequestEvent& event, Time now, std::vector<RequestAction>& out) {
  Turn t{options_, fleet_, room_, now, out};
  std::visit([&](const auto& e) { on(e, t); }, event);
  for (Record* const r : followers_.freed()) allocate(t, *r);
}

}  // namespace mc::sched
