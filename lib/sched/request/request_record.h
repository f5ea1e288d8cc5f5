// One request of a RequestMachine: its state, and what each party was told and has confirmed.
//
// What is owed to a party at the end follows from its side alone. Private to request_*.cc.
//
// Thread: values. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sched/request/fleet.h"
#include "sched/request/request_events.h"
#include "sched/request/request_options.h"
#include "sched/request/waiting_room.h"

namespace mc::sched {

enum class DecodeSide : uint8_t { kNone, kReserveSent, kReserved, kDecoding, kFinished };
// kCommittedEarly: its tokens came before its numbers. kEnded: it failed or went after tokens came;
// nothing more comes from it.
enum class PrefillSide : uint8_t {
  kNone,
  kAllocateSent,
  kAllocated,
  kComputed,
  kCommittedEarly,
  kCommitted,
  kEnded
};
enum class SourceSide : uint8_t { kNone, kPinSent, kPinned, kRefused, kGone };  // of a prefix
// kBothHalves: of a pair at once, and none has answered. kWhole: the one that
// answers the client has it.
enum class ProxySide : uint8_t { kNone, kPrefillHalf, kBothHalves, kWhole, kAnswering };
struct Served {  // what counts for its tenant's share
  bool prompt = false;
  uint64_t answer = 0;  // tokens of the answer that an engine gives
};

struct Held {  // an engine's answer, for its client
  bool now = false;
  std::optional<Time> resumed{};  // when it was held no more, if it was
};

struct TurnedAway {  // by an engine that said it is full
  std::string engine, retry_after;
  int status = 0;
};

struct RequestRecord {
  uint64_t id = 0;
  RequestAsk ask;
  std::vector<uint64_t> tags;
  Time arrived{}, deadline = Time::max();
  Duration stood{};  // since it arrived, this process stood still for so long
  Time asked_for{};  // its arrival, or the failure after which others go on with its answer
  RequestState state = RequestState::kWaiting;
  struct Failures {  // behind which it began anew
    uint32_t count = 0;
    RequestError last{};
  };
  Failures failures{};
  Exclusions out;
  WorkerRef lost;  // ended while it was asked
  TurnedAway turned_away;
  Served served;
  Progress progress;
  // The attempt.
  uint32_t attempt = 0;
  Time begun{};
  Choice choice;
  EnginePair pair;
  DecodeSide decode = DecodeSide::kNone;
  PrefillSide prefill = PrefillSide::kNone;
  SourceSide source = SourceSide::kNone;
  ProxySide proxy = ProxySide::kNone;
  Held held;
  PrefixIndex::Guess guess = 0;
  uint64_t decode_spoke = 0;  // of its decode worker, when blocks were counted there
  AttemptRef behind;          // another one that fetches its prefix to its prefill worker
  Time first_token{};
  std::optional<double> measured_ms;  // from the prefill worker's queue until its KV was sent

  AttemptRef ref() const { return {id, attempt}; }
  const WorkerRef& decode_at() const { return choice.decode; }
  const WorkerRef& prefill_at() const { return choice.prefill; }
  const WorkerRef& source_at() const { return choice.source; }
  bool on_workers() const { return decode != DecodeSide::kNone; }  // and charged there
  bool computed() const {                                          // its numbers came
    return prefill == PrefillSide::kComputed || prefill == PrefillSide::kCommitted;
  }
  // Its prefill worker answered, or never will.
  bool prefill_over() const { return computed() || prefill == PrefillSide::kEnded; }
  bool committed() const {
    return prefill == PrefillSide::kCommitted || prefill == PrefillSide::kCommittedEarly;
  }
  bool counts_at_prefill() const { return on_workers() && !prefill_over(); }
  // Of the answer, by this attempt.
  uint32_t own_tokens() const { return progress.output_tokens - ask.answered; }
  bool goes_on() const { return ask.answered > 0; }  // behind what others answered
  // Whose answer is waited for at an engine.
  const std::string& asked() const {
    const bool first = proxy == ProxySide::kPrefillHalf || proxy == ProxySide::kBothHalves;
    return first || pair.decode.empty() ? pair.engine : pair.decode;
  }
  WaitingRoom::Turn turn() const { return {ask.priority, ask.tenant, ask.share, arrived}; }
};

// What one call of the machine works with.
struct MachineTurn {
  const RequestOptions& options;
  Fleet& fleet;
  WaitingRoom& room;
  Time now;
  std::vector<RequestAction>& out;

  template <class Action>
  void ask(Action action) {
    out.push_back(std::move(action));
  }
  void measured(Measure what, double value) { out.push_back(Measured{what, value}); }
};

// request_attempt.cc: the steps of an attempt, as far as it alone is concerned.
DecisionMade decision_made(RequestRecord& r);  // takes the candidates: nothing else looks at them
void begin_on_workers(MachineTurn& t, RequestRecord& r);
void begin_on_engines(MachineTurn& t, RequestRecord& r);
void first_half_answered(MachineTurn& t, RequestRecord& r);
void wait_for_engine(MachineTurn& t, RequestRecord& r);  // until a deadline, for its first byte
// An engine computes an answer that is no stream: nothing of it comes before all of it is there.
bool awaits_all(const RequestRecord& r);
inline bool has_token(const RequestRecord& r) { return r.first_token != Time{}; }
void allocate(MachineTurn& t, RequestRecord& r);
void commit(MachineTurn& t, RequestRecord& r);
void first_token(MachineTurn& t, RequestRecord& r);
void note_computed(MachineTurn& t, RequestRecord& r, const PrefillTimes& times);
void note_finished(MachineTurn& t, RequestRecord& r);
// Releases all that the attempt holds, here and on the workers.
void release(MachineTurn& t, RequestRecord& r, const std::string& reason);

// request_backfill.cc
// The place that is kept for the first that waits and does not fit: on the node where it is
// expected to have room the soonest, from a time on, with blocks to spare.
struct Reservation {
  WorkerRef at;
  Time from = Time::max();
  int64_t spare = 0;
};
Reservation reserve(MachineTurn& t, const RequestRecord& head,
                    const std::vector<const RequestRecord*>& running);
// Whether a request may go before that one: only if it is not served later for it. Gives the choice
// with which it may.
std::optional<Choice> fits_behind(MachineTurn& t, const RequestRecord& head,
                                  const Reservation& kept, RequestRecord& behind);

// request_checks.cc: the first thing that is wrong with it; "": nothing.
std::string broken(const RequestRecord& r);

RequestError failed_at(const char* op, const std::string& node, const Error& error);
RequestError too_large(const Fleet& fleet, const RequestRecord& r);
uint32_t retry_after_s(Duration excess);

}  // namespace mc::sched
