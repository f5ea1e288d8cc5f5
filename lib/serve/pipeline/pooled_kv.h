// Gets the KV of a prompt from the pool for a decode worker: whole blocks, or the parts of a block
// that the stages of a pipeline put, each the layers of one stage.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "cost/model_spec.h"
#include "serve/connector/kv_sender.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/sequence.h"

namespace mc::serve {

// Of a prompt whose KV went by `route`. `stages`: of a pipeline over the pool, else 0; `pooled`: of
// each stage after the head the blocks whose part it put.
KvReady ready_message(const KvRoute& route, uint32_t stages,
                      const std::map<uint32_t, std::vector<uint32_t>>& pooled);

// Errors: kInvalid, kUnsupported for blocks and parts that this worker cannot get. `pool`: it has a
// store; `ranks`: of its blocks.
Result<> check_pooled(const KvReady& m, size_t prompt_blocks, bool pool,
                      const cost::ModelSpec& spec, uint32_t ranks);

// `done(got, lost)` on a later turn: the blocks that arrived, and the first that did not. Requires:
// check_pooled allowed the message; the sequence's blocks stay until then.
void fetch_pooled(StoreConnector& pool, const Sequence& s, const KvReady& m,
                  const cost::ModelSpec& spec, uint32_t block_tokens,
                  std::function<void(size_t got, std::optional<uint32_t> lost)> done);

}  // namespace mc::serve
