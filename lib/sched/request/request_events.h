// What happens to requests, and what is to be done about it.
//
// A driver gives the events to a RequestMachine and carries out the actions, in their order. The
// machine knows no messages: the driver keeps what a reply carries (a reservation, a pinned prefix,
// an engine's answer) by attempt, and puts it into the message that an action asks for.
//
// Thread: values. Pure.
#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "sched/request/fleet.h"
#include "sched/request/progress.h"
#include "sched/request/roster.h"

namespace mc::sched {

struct AttemptRef {  // of a request, on some workers
  uint64_t request = 0;
  uint32_t attempt = 0;
  auto operator<=>(const AttemptRef&) const = default;
};

enum class RequestState : uint8_t {
  kWaiting,     // for room
  kReserving,   // at the decode worker; a prefix may be pinned meanwhile
  kAllocating,  // at the prefill worker
  kPrefilling,
  kDecoding,
  kFinishing,  // it has its tokens; the prefill worker's numbers are missing
  kProxied     // an external engine has it
};
const char* name(RequestState state);

enum class Step : uint8_t { kReserve, kPin, kAllocate, kPrefill, kCommit };
const char* name(Step step);

// ---- events

struct RequestArrived {
  uint64_t request = 0;  // larger than any before
  RequestAsk ask = {};
  std::vector<uint64_t> tags = {};  // of the prompt's blocks
};

struct PrefillTimes {  // as the prefill worker measured them
  uint32_t cached_tokens = 0, pool_tokens = 0, peer_tokens = 0;
  double queue_ms = 0, load_ms = 0, prefill_ms = 0, transfer_ms = 0;
  double fetch_ms = 0;  // of load_ms: from the pool
  double peer_ms = 0;   // reading the peer's tokens
  uint64_t kv_bytes = 0;
};

struct StepAnswered {
  AttemptRef of = {};
  Step step = Step::kReserve;
  Result<> outcome = {};
  double queue_ms = 0;      // of kAllocate: the worker's own estimate
  PrefillTimes times = {};  // of kPrefill
};

struct TokensArrived {
  AttemptRef of = {};
  uint32_t first = 0;  // the number of the first of them in the answer, from 1; 0: the next one
  uint32_t count = 0;
  std::string finish = {};  // "", "stop", "length"; all else is a failure, told in `error`
  std::string error = {};
  uint32_t kv_errors = 0;
  double load_ms = 0, decode_ms = 0;  // with finish
};

struct TokensComplete {  // a decode worker sent a batch: its tokens were the events before
  std::string node = {};
};

struct UpstreamData {  // bytes of an external engine's answer to the client
  AttemptRef of = {};
  uint32_t tokens = 0;
  bool goes_on = true;  // enough for another deadline
  bool good = true;     // of a good answer, not of a refusal
};

struct UpstreamHeld {  // its client has much of it to take still: no more is read meanwhile
  AttemptRef of = {};
  bool held = true;
};

struct UpstreamEnded {  // an external engine's answer is complete, or failed
  AttemptRef of = {};
  bool first_half = false;  // of a pair
  Result<> outcome = {};    // of the exchange
  int status = 0;           // of the answer
  std::string retry_after = {};
  // Of a good answer. Of a pair's first half: cached_tokens.
  std::optional<uint32_t> prompt_tokens = {}, cached_tokens = {}, output_tokens = {};
  bool may_be_empty = false;  // a good one without a byte is no failure
};

struct WorkerGone {  // it is in the roster no more
  WorkerRef worker = {};
  bool prefill = false;
  std::string why = {};
  bool changed_role = false;  // it had finished: nothing failed
};

struct RequestCancelled {
  uint64_t request = 0;
  std::string reason = {};
};

struct RoomFreed {};
struct DrainStarted {};
struct ClockStoodStill {  // this process did: nothing is late for that
  Duration time{};
};
struct AllEnded {  // the service ends
  std::string reason = {};
};

using RequestEvent =
    std::variant<RequestArrived, StepAnswered, TokensArrived, TokensComplete, UpstreamData,
                 UpstreamHeld, UpstreamEnded, WorkerGone, RequestCancelled, RoomFreed, DrainStarted,
                 ClockStoodStill, AllEnded>;

// ---- actions

struct SendStep {
  AttemptRef of = {};
  Step step = Step::kReserve;
  WorkerRef to = {};
  WorkerRef with = {};   // kReserve: the prefill worker
  Duration budget = {};  // for the answer
  uint64_t tokens = 0;   // kPin: the first of the prompt
  uint64_t number = 0;   // kAllocate: the worker computes in the order of these
  // kPin: of these, that are not computed yet, and how long they may be waited for.
  uint64_t coming = 0;
  Duration patience = {};
};
struct AbortAt {
  AttemptRef of = {};
  WorkerRef at = {};
  std::string reason = {};
};
struct ProxyTo {
  AttemptRef of = {};
  EnginePair pair = {};
  bool second = false;  // a pair's second half; unless both go at once: with the first's answer
};
struct StopProxy {  // both halves of a pair
  AttemptRef of = {};
  std::string engine = {};
};
struct EngineAnswered {  // how well it does, for who watches that
  std::string engine = {};
  bool well = true;
};
struct DeliverTokens {  // of the event in hand, without the first `skip`
  AttemptRef of = {};
  uint32_t skip = 0;
  Progress progress = {};
};
struct DeliverBytes {  // of the event in hand
  AttemptRef of = {};
  Progress progress = {};
};
struct PassOn {  // an engine's own refusal, as it is. `turned_away`: the last that said it is full
  AttemptRef of = {};
  bool turned_away = false;
  Progress progress = {};
};
struct DecisionMade {
  AttemptRef of = {};
  Choice choice = {};
  Progress progress = {};
};
struct TriedAgain {  // after a failure
  uint64_t request = 0;
  std::string why = {};
};
enum class Measure : uint8_t {
  kPredictedTtft,
  kTtft,
  kTtftError,  // predicted minus actual, as all errors; all times in ms
  kQueueError,
  kFetchError,
  kPoolError,
  kPrefillError,
  kTransferError,
  kFirstStepError,
  kTbtError,
  kInputTokens,
  kHitTokens,
  kReachableTokens,
  kStaleTokens,
  kReplicatedTokens,
  kPoolMemoryExpected,  // tokens
  kPoolDiskExpected,
  kPoolTokens,
  kKvErrors,
  kWastedPrefill
};
struct Measured {
  Measure what = Measure::kTtft;
  double value = 0;
};
struct FinishRequest {  // the last action of a request that was not cancelled
  uint64_t request = 0;
  std::optional<RequestError> error = {};
  int status = 200;  // for the client
  Progress progress = {};
};

using RequestAction =
    std::variant<SendStep, AbortAt, ProxyTo, StopProxy, EngineAnswered, DeliverTokens, DeliverBytes,
                 PassOn, DecisionMade, TriedAgain, Measured, FinishRequest>;

}  // namespace mc::sched
