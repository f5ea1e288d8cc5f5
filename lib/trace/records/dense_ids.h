// Numbers a trace's block ids densely from 0.
// All prompts lie in one flat array, which the cache studies scan many times.
//
// Thread: values; any thread. Pure: no clock, no I/O.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "trace/records/records.h"

namespace mc::trace {

struct Numbered {
  uint64_t block_tokens = kBlockTokens;
  uint32_t distinct = 0;                 // ids are below this
  std::vector<uint32_t> ids;             // of all prompts, one after another
  std::vector<uint64_t> starts;          // of each prompt in `ids`; one more at the end
  std::vector<uint64_t> input;           // tokens of each prompt
  uint64_t tokens = 0, full_blocks = 0;  // of all prompts

  size_t size() const { return input.size(); }
  std::span<const uint32_t> all(size_t i) const {
    return std::span(ids).subspan(starts[i], starts[i + 1] - starts[i]);
  }
  std::span<const uint32_t> full(size_t i) const {
    return all(i).first(trace::full_blocks(input[i], block_tokens));
  }
  std::span<const uint32_t> of(size_t i, bool full_only) const {
    return full_only ? full(i) : all(i);
  }
  // Tokens in the first `blocks` blocks of prompt i; a partial block counts its own tokens.
  uint64_t tokens_in(size_t i, uint64_t blocks) const {
    return std::min(blocks * block_tokens, input[i]);
  }
};

Numbered number_blocks(const std::vector<TraceRequest>& records, uint64_t block_tokens);

}  // namespace mc::trace
