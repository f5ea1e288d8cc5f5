// One sequence of a decode worker, as far as its KV blocks go (decode_blocks.h).
//
// Thread: one owner. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "serve/kvcache/block_manager.h"

namespace mc::serve {

// Where the KV of a sequence is.
enum class KvPlace : uint8_t {
  kHere,       // in its blocks, or on its way into them for the first time
  kLeaving,    // preempted: being copied out of its blocks
  kAway,       // preempted: it has no blocks
  kReturning,  // being copied, fetched or computed into its new blocks
};

struct DecodeKv {
  DecodeKv() = default;
  DecodeKv(const DecodeKv&) = delete;
  DecodeKv& operator=(const DecodeKv&) = delete;
  virtual ~DecodeKv() = default;
  virtual size_t length() const = 0;  // tokens: the prompt, then what was generated
  // What names the content of a block that has KV.
  virtual BlockHash block_key(size_t block, uint32_t block_tokens) const = 0;

  std::string request;
  size_t prompt = 0;  // tokens
  uint32_t max_tokens = 0;
  std::vector<std::byte*> blocks;  // their memory; null in a simulation
  TxId tx = 0;
  bool own = false;              // this process computes its prompt
  std::vector<BlockId> adopted;  // then: the prompt's blocks, pinned
  size_t here = 0;               // else: leading blocks that were here, shared with others
  bool settled = false;          // the prefill side writes no more
  bool ended = false;            // nobody waits for its tokens any more
  uint64_t age = 0;              // by arrival; the youngest has the largest
  KvPlace kv = KvPlace::kHere;
  bool stalled = false;     // no block for its next token
  uint64_t host_bytes = 0;  // of its KV in host memory, while it has no blocks
  bool pooled = false;      // then: the pool was given its full blocks
  int busy = 0;             // compute jobs and transfers that use it

  size_t generated() const { return length() - prompt; }
  // Leading tokens whose KV is in memory between two steps: the last generated one has none.
  size_t written() const { return generated() > 0 ? length() - 1 : length(); }
};
using DecodeKvPtr = std::shared_ptr<DecodeKv>;

}  // namespace mc::serve
