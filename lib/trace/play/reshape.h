// Stretches traces, and makes traces of identical requests.
//
// Thread: values; any thread. Pure: no clock, no I/O.
#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "trace/records/records.h"

namespace mc::trace {

// Factors that stretch a trace. `rate` multiplies the request rate. `prefix` multiplies the full
// blocks that a prompt shares with another request, the same way for all requests that share them.
// `prompt` multiplies the length of the unshared rest. A fraction of a block is rounded down over
// the prefix as a whole. A prompt with an unshared rest keeps at least one token of it.
struct Stretch {
  double rate = 1, prefix = 1, prompt = 1;
  bool none() const { return rate == 1 && prefix == 1 && prompt == 1; }
};

// New ids, dense from 0 in order of first use. Errors: kInvalid for factors that are not finite and
// above 0, and where a prompt or the whole trace would pass its limits (trace/records/records.h).
Result<std::vector<TraceRequest>> stretch(const std::vector<TraceRequest>& records,
                                          uint64_t block_tokens, const Stretch& by);

// Identical requests at even distances. All prompts share the first `shared_tokens`, in whole
// blocks; the rest is unique to each.
struct FixedShape {
  uint64_t requests = 200, input = 1024, output = 6, shared_tokens = 0;
  double qps = 2;
};
Result<std::vector<TraceRequest>> fixed(const FixedShape& shape,
                                        uint64_t block_tokens = kBlockTokens);

}  // namespace mc::trace
