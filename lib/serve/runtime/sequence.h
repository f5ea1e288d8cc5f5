// One request on a decode worker: its tokens, KV blocks and progress.
//
// Thread: the loop's; while `busy`, tokens, parents and speculation belong to the compute thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/step_trace.h"
#include "serve/batch/decode_kv.h"
#include "serve/engine/engine.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/prompt_lookup.h"
#include "telemetry/tracer.h"

namespace mc::serve {

class Guide;

struct Sequence : DecodeKv {
  std::string conductor;
  std::vector<int32_t> tokens;     // the prompt, then what was generated; never reallocated
  std::vector<BlockHash> parents;  // of each block that holds a token; never reallocated
  std::vector<int32_t> stop_tokens;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<model::Bias> bias;  // what `sampling` has; never reallocated
  Sampling sampling;
  std::optional<Speculation> speculation;  // nullopt: its tokens are not guessed
  std::shared_ptr<Guide> guide;            // keeps the answer to its form; nullptr: it has none
  size_t slot = 0;                         // of its guard word
  uint64_t guard = 0;
  bool recomputed = false;  // its KV was late: computed here
  bool freed = false;       // it has no blocks and no slot any more
  bool fencing = false;     // its guard refuses writes; it is settled when none can be in flight
  std::unique_ptr<std::byte[]> swapped;  // its KV, while it has no blocks
  Time reserved{}, arrived{}, verified{}, joined{};
  uint32_t answered = 0;  // tokens sent to the conductor
  // From its reservation to its end; of the KV, below its transfer.
  telemetry::OpenSpan span, receive;
  std::shared_ptr<StepTrace> steps;  // below `span`: what it asks of the pool; may be null

  size_t length() const override { return tokens.size(); }
  SequenceView view() const { return {tokens, parents, blocks}; }
  // The chained hash of a prompt block, before any token is generated. The last block's covers the
  // tokens it has, which may be fewer than a full block's.
  BlockHash block_key(size_t block, uint32_t block_tokens) const override;
  // Tokens that may still be generated after the next one.
  size_t left() const { return max_tokens > generated() ? max_tokens - generated() - 1 : 0; }
  // Appends a token; if it begins a block, the block gets its parent's digest.
  void append(int32_t token, uint32_t block_tokens);
  // Records the span and its steps, once.
  void end_span(Time now, const std::string& error = {});
};
using SequencePtr = std::shared_ptr<Sequence>;

// A sequence of the prompt alone, with room for all it may generate.
SequencePtr make_sequence(const Reserve& m, uint32_t block_tokens);

// The parent digest of each block of a prompt. `hashes`: of its full blocks. A tenant's salt is the
// first block's parent.
std::vector<BlockHash> parents_of(const std::vector<BlockHash>& hashes, size_t blocks,
                                  const std::string& cache_salt);

}  // namespace mc::serve
