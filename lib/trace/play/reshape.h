// Traces made from other traces, and the plainest of all.
//
// Thread: values; any thread. Pure: no clock, no I/O.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "trace/records/records.h"

namespace mc::trace {

// How a trace is stretched. `rate`: requests come so many times as fast. `prefix`: the full blocks
// that a prompt shares with another request become so many times as many, the same ones for all
// who share them. `prompt`: what no other request has becomes so many times as long. A fraction of
// a block is rounded down over the prefix as a whole; a prompt keeps at least one token of its own,
// if it had any.
struct Stretch {
  double rate = 1, prefix = 1, prompt = 1;
  bool none() const { return rate == 1 && prefix == 1 && prompt == 1; }
};

// New ids, dense from 0 in order of first use. Errors: kInvalid for factors that are not finite and
// above 0, and where a prompt or the whole trace would pass its limits (trace/records/records.h).
Result<std::vector<TraceRequest>> stretch(const std::vector<TraceRequest>& records,
                                          uint64_t block_tokens, const Stretch& by);

// Requests that are all alike, evenly apart; the first `shared_tokens` (whole blocks of them) of
// the prompts are the same, the rest of each is its own.
struct FixedShape {
  uint64_t requests = 200, input = 1024, output = 6, shared_tokens = 0;
  double qps = 2;
};
Result<std::vector<TraceRequest>> fixed(const FixedShape& shape,
                                        uint64_t block_tokens = kBlockTokens);

}  // namespace mc::trace
