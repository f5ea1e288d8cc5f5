// A request at external engines: its exchanges with them, and the end of the answer.
//
// Thread: the loop's.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "http/client.h"
#include "http/strict.h"
#include "sched/request/fleet.h"
#include "serve/external/answer_events.h"
#include "serve/external/answer_model.h"
#include "serve/external/external_engine.h"
#include "serve/external/pairs.h"
#include "telemetry/tracer.h"

namespace mc::serve {

struct EngineExchange {
  std::string asked = {};  // the engine
  http::Client::Id http = 0;
  int status = 0;
  std::string type = {}, held = {};  // of the answer; what of it does not pass as it comes
  bool too_long = false;             // what does not pass: none of it is kept
  std::string retry_after = {};      // where it is full
  telemetry::OpenSpan span = {};
  bool streams() const { return http::is_type(type, "text/event-stream"); }
};

struct ProxiedAttempt {
  sched::EnginePair pair;
  PairMeeting meeting;
  uint64_t local_tokens = 0;                // what the engine was thought to have
  EngineExchange first, answer;             // of a pair's first half; of who answers the client
  const EngineExchange* refused = nullptr;  // the one whose refusal is in hand
  std::string tail;                         // of the answer
  std::string usage;                        // the last that stood before that, JSON; "": none
  uint64_t output_limit = 0;                // tokens that the answer may have at most
  AnswerEvents events;
  size_t since_pace = 0;  // bytes since the deadline moved
  AnswerTimes times;
  bool was_held = false;              // for its client: the times say little of the engine
  std::optional<AnswerModel> rename;  // where the engine has its own name for the model
};

}  // namespace mc::serve
