// The whole life of a request: pure, and driven by a conductor or a simulator.
//
// clang-format off
// in            on                                      goes to, and asks for
//   -           RequestArrived: accepted                kReserving: DecisionMade, SendStep
//                                                       kReserve, and kPin for a prefix elsewhere
//   -           others wait, or nobody has room         kWaiting
//   -           over an SLO, too large, draining        FinishRequest with 429, 400, 503
//   -           an external engine was chosen           kProxied: DecisionMade, ProxyTo; two for
//                                                       a pair that gets it at once
//   kReserving  kReserve, and kPin where sent, answered kAllocating: SendStep kAllocate, kPrefill;
//                                                       behind one that brings its prefix there
//   kAllocating kAllocate answered                      kPrefilling; the next may try
//   no token    an answer: no room                      decided anew without that node
//   no token    failed, WorkerGone, deadline            decided anew `retries` times, then
//                                                       FinishRequest with 503, 504
//   kAllocating, kPrefilling    TokensArrived           kDecoding: SendStep kCommit, DeliverTokens
//   kDecoding   TokensArrived with a finish             kFinishing, until kPrefill is answered
//   kDecoding   its decode worker failed, went, or is   decided anew behind the tokens told, as
//               silent                                  without a token (`continues`)
//   kProxied    UpstreamData, UpstreamEnded             DeliverBytes, FinishRequest; a pair's
//                                                       second half; another engine
//   kProxied    UpstreamHeld                            the client is late, not the engine:
//                                                       FinishRequest with 499
//   any         RequestCancelled                        AbortAt; no FinishRequest
//   kWaiting    RoomFreed, tick                         the next in turn tries (WaitingRoom);
//                                                       behind it who does not delay it
// clang-format on
//
// An attempt has a number; an event of another one changes nothing. Whatever waits has a deadline.
//
// Thread: one owner. Pure: time is an argument. Source: Mooncake paper sections 3, 4 and 5.3
// (Figure 9); backfill: Lifka, The ANL/IBM SP scheduling system (1995).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sched/request/fleet.h"
#include "sched/request/followers.h"
#include "sched/request/request_events.h"
#include "sched/request/request_options.h"
#include "sched/request/waiting_room.h"

namespace mc::sched {

struct RequestRecord;
struct MachineTurn;

class RequestMachine {
 public:
  static constexpr size_t kBackfillMax = 8;   // tries of a round behind the first
  static constexpr size_t kLookedAtMax = 64;  // requests that a round looks at for these
  RequestMachine(RequestOptions options, Fleet& fleet);
  ~RequestMachine();
  RequestMachine(const RequestMachine&) = delete;
  RequestMachine& operator=(const RequestMachine&) = delete;

  // Appends what is to be done.
  void handle(const RequestEvent& event, Time now, std::vector<RequestAction>& out);
  void tick(Time now, std::vector<RequestAction>& out);  // deadlines; who waits tries again
  Time deadline() const;                                 // Time::max(): none. Looks at all requests

  size_t in_flight() const { return requests_.size(); }
  size_t waiting() const { return room_.size(); }
  bool draining() const { return draining_; }
  std::vector<uint64_t> all() const;
  const Progress* progress(uint64_t request) const;  // nullptr: it is not in flight
  std::optional<RequestState> state(uint64_t request) const;
  // The number of the next token, from 1; 0: there is no such attempt.
  uint64_t next_token(const AttemptRef& attempt) const;
  // The first invariant that does not hold; "": all is sound. Costs a look at everything.
  std::string broken() const;

 private:
  using Turn = MachineTurn;
  using Record = RequestRecord;
  Record* find(const AttemptRef& attempt);

  template <class Event>
  void on(const Event& event, Turn& turn);
  void start(Turn& t, Record& r);
  void take(Turn& t, Record& r, Choice choice);
  void refuse(Turn& t, Record& r);
  void refuse_computed(Turn& t, Record& r);
  void wait(Turn& t, Record& r);
  void next_round(Turn& t);
  void go_on(Turn& t, uint64_t round);
  void has_place(Record& r);
  void step_failed(Turn& t, Record& r, Step step, const Error& error);
  void no_room(Turn& t, Record& r, const std::string& node, const std::string& why);
  void fail_attempt(Turn& t, Record& r, const std::set<std::string>& avoid, RequestError why);
  void expired(Turn& t, Record& r);
  void end(Turn& t, Record& r, std::optional<RequestError> failed, int status = 200);
  void gone(Turn& t, Record& r, const WorkerGone& e);

  const RequestOptions options_;
  Fleet& fleet_;
  WaitingRoom room_;
  std::map<uint64_t, std::unique_ptr<Record>> requests_;
  struct {
    uint64_t number = 0;
    size_t tries = 0, looked_at = 0;
    uint64_t first = 0;  // who was first in turn and tried
    Time begun{};
  } round_;
  bool first_tries(Time now) const;
  size_t in_room(Time now) const;
  Followers followers_;
  bool draining_ = false;
};

}  // namespace mc::sched
