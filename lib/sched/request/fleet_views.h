// A worker as decisions see it, and the room that it has.
//
// Thread: values. Pure.
#pragma once
#include <cstdint>

#include "sched/policy.h"
#include "sched/request/roster.h"

namespace mc::sched {

// Blocks of a decode worker for a request: those of prompt and answer, and those of the prompt.
struct DecodeNeed {
  uint64_t whole = 0, prompt = 0;
};
uint64_t blocks_reserved(const FleetWorker& w, const DecodeNeed& need);  // what it takes of these
int64_t room_of(const FleetWorker& w);                                   // blocks for new requests

// A worker as choose() sees it. `blocks`: what it would lock for the request.
PrefillView prefill_view(const FleetWorker& w, uint32_t match, double work_ms, int64_t priority,
                         uint64_t blocks, Time now);
DecodeView decode_view(const FleetWorker& w, const DecodeNeed& need);

}  // namespace mc::sched
