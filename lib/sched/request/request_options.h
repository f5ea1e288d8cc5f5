// How long the steps of a request may take, and how often it is tried.
//
// Thread: values. Pure.
#pragma once
#include <cstdint>

#include "base/time.h"

namespace mc::sched {

struct RequestOptions {
  uint32_t retries = 1;                             // after failures
  Duration step_timeout = std::chrono::seconds(5);  // of the decode and the prefill worker
  // Then the prefix is computed, and twice this over twice the prediction for one that is to come.
  Duration pin_timeout = std::chrono::milliseconds(500);
  Duration prefill_timeout = std::chrono::seconds(120);  // queueing included
  // For all of an engine's answer that is no stream. What is late by that is not asked for again.
  Duration answer_timeout = std::chrono::minutes(10);
  Duration pair_wait = std::chrono::seconds(10);      // for one half after the other's answer
  Duration token_timeout = std::chrono::seconds(30);  // to the next token
  // For a client that leaves much of an engine's answer unread, to take so much that it goes on.
  Duration held_timeout = std::chrono::minutes(5);
  Duration queue_timeout = std::chrono::seconds(30);  // waiting for room
  uint32_t queue_max = 4096;                          // requests waiting for room
  // A failure after the first token: other workers go on behind the tokens that were told. The
  // driver keeps these.
  bool continues = false;
  // Over the time of a step: a driver's own deadline comes first, as it knows more of the failure.
  Duration slack = std::chrono::seconds(1);
};

}  // namespace mc::sched
