// Sends a request's KV from the prefill worker to its decode worker.
// This is the prefill side of a KV connector. The decode side needs no setting: it follows the
// messages, so workers of different connectors serve together.
//
//   push   writes into the reserved blocks
//   pull   offers its blocks, and the decode worker reads them
//   pool   puts blocks into the KV store, and the decode worker gets them there; blocks that the
//          store refuses are pushed. A last block that is not full has a key of its own.
//   multi  pushes now; the worker also puts full blocks into the store for later requests
//
// The blocks are the sender's until `done` ran; then they may be freed (vLLM: delay_free). `done`
// runs within the range's deadline. Puts have the store's own time-outs, which come before it.
//
// Thread: the loop's. Source: Mooncake paper section 3.1; global-prefix-cache chapter 7.2.6, 7.6.5.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/client.h"
#include "serve/connector/kv_shape.h"
#include "serve/connector/kv_transfer.h"
#include "serve/connector/store_connector.h"
#include "serve/kvcache/block_manager.h"

namespace mc::serve {

enum class Connector : uint8_t { kPush, kPull, kPool, kMulti };
// Errors: kInvalid for any name but push, pull, pool, multi.
Result<Connector> connector_named(const std::string& name);

// The parts in which a prompt's KV is sent.
enum class SendGranularity : uint8_t {
  kLayer,   // a layer of a chunk as soon as it is computed
  kChunk,   // the whole blocks of a chunk
  kPrompt,  // the whole prompt at the end
};

// One request's KV on its way.
struct KvRoute {
  std::string request;
  std::string decode;  // its control address
  KvPeer peer;         // the reserved blocks; offsets where the sender's part begins
  uint32_t ranks = 1;  // of those
  size_t there = 0;    // leading blocks that the decode worker has
  uint64_t shift = 0;  // of the sender's layers within a block: it has a slice
  std::vector<std::byte*> blocks;
  std::vector<BlockId> ids;
  std::vector<BlockHash> keys;   // one a block; a partial last block's covers its tokens
  bool offered = false;          // pull: the decode worker knows our blocks
  std::vector<uint32_t> pooled;  // for KvReady: blocks to get from the pool
};

class KvSender {
 public:
  using Done = std::function<void(const Result<>&)>;
  virtual ~KvSender() = default;
  virtual SendGranularity granularity() const = 0;
  // The bytes of the range are computed. `done` on a later turn.
  virtual void send(const std::shared_ptr<KvRoute>& route, const KvRange& range, Done done) = 0;
};

// The worker's objects that senders use; all outlive the sender.
struct SenderParts {
  io::Loop& loop;
  xfer::Engine& engine;
  const xfer::Memory& memory;  // of the worker's blocks
  KvShape shape;               // and of the decode worker's, but for the ranks
  KvTransfer& transfer;
  StoreConnector* pool = nullptr;                                  // nullptr: none
  std::function<rpc::Client*(const std::string& address)> client;  // nullptr: no such address
};

// Errors: kInvalid for kPool without a pool.
Result<std::unique_ptr<KvSender>> make_sender(Connector connector, bool layerwise,
                                              SenderParts parts);

}  // namespace mc::serve
