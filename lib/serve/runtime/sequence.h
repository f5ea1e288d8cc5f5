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
#include "serve/engine/engine.h"
#include "serve/kvcache/block_manager.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/prompt_lookup.h"
#include "telemetry/tracer.h"

namespace mc::serve {

class Guide;

// Where the KV of a sequence is.
enum class KvPlace : uint8_t {
  kHere,       // in its blocks, or on its way into them for the first time
  kLeaving,    // preempted: being copied out of its blocks
  kAway,       // preempted: it has no blocks
  kReturning,  // being copied, fetched or computed into its new blocks
};

struct Sequence {
  std::string request, conductor;
  std::vector<int32_t> tokens;     // the prompt, then what was generated; never reallocated
  std::vector<BlockHash> parents;  // of each block that holds a token; never reallocated
  std::vector<std::byte*> blocks;
  std::vector<int32_t> stop_tokens;
  size_t prompt = 0;  // tokens
  uint32_t max_tokens = 0, min_tokens = 0;
  bool ignore_eos = false;
  std::vector<model::Bias> bias;  // what `sampling` has; never reallocated
  Sampling sampling;
  std::optional<Speculation> speculation;  // nullopt: its tokens are not guessed
  std::shared_ptr<Guide> guide;            // keeps the answer to its form; nullptr: it has none
  TxId tx = 0;
  bool own = false;              // this process computes its prompt
  std::vector<BlockId> adopted;  // then: the prompt's blocks, pinned
  size_t here = 0;               // else: leading blocks that were here, shared with others
  size_t slot = 0;               // of its guard word
  uint64_t guard = 0;
  bool settled = false;     // the prefill side writes no more
  bool recomputed = false;  // its KV was late: computed here
  bool ended = false;       // the conductor knows, or aborted it
  bool freed = false;       // it has no blocks and no slot any more
  bool fencing = false;     // its guard refuses writes; it is settled when none can be in flight
  uint64_t age = 0;         // by arrival; the youngest has the largest
  KvPlace kv = KvPlace::kHere;
  bool stalled = false;                  // no block for its next token
  std::unique_ptr<std::byte[]> swapped;  // its KV, while it has no blocks
  bool pooled = false;                   // then: the pool was given its full blocks
  int busy = 0;                          // compute jobs and transfers that use it
  Time reserved{}, arrived{}, verified{}, joined{};
  uint32_t answered = 0;  // tokens sent to the conductor
  // From its reservation to its end; of the KV, below its transfer.
  telemetry::OpenSpan span, receive;
  std::shared_ptr<StepTrace> steps;  // below `span`: what it asks of the pool; may be null

  size_t generated() const { return tokens.size() - prompt; }
  // Leading tokens whose KV is in memory between two steps: the last generated one has none.
  size_t written() const { return generated() > 0 ? tokens.size() - 1 : tokens.size(); }
  SequenceView view() const { return {tokens, parents, blocks}; }
  // The chained hash of a prompt block, before any token is generated. The last block's covers the
  // tokens it has, which may be fewer than a full block's.
  BlockHash block_key(size_t block, uint32_t block_tokens) const;
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
