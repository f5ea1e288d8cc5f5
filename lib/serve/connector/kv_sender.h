// The prefill half of a KV connector: how a request's KV gets from the blocks it was computed in to
// the decode worker that reserved room for it. The decode half needs no setting: it does as it is
// told, so that workers of different connectors serve together.
//
//   push   writes into the reserved blocks
//   pull   offers its blocks, and the decode worker reads them
//   pool   puts blocks into the KV store, whence the decode worker gets them; what the store does
//          not take is pushed. A last block that is not full goes under a key of its own.
//   multi  push now, and put full blocks into the store for requests to come (the worker does that)
//
// Every way, the blocks are the sender's until `done` ran; then they may be freed (vLLM calls it
// delay_free). `done` runs within the range's deadline, which puts, with the store's own time-outs,
// come before.
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
// kInvalid: none of push, pull, pool, multi.
Result<Connector> connector_named(const std::string& name);

// What of a prompt is sent when.
enum class SendGranularity : uint8_t {
  kLayer,   // a layer of a chunk as soon as it is computed
  kChunk,   // the whole blocks of a chunk
  kPrompt,  // all at the end
};

// One request's KV on its way.
struct KvRoute {
  std::string request;
  std::string decode;  // its control address
  KvPeer peer;         // the reserved blocks, from where in each the sender's begin
  uint32_t ranks = 1;  // of those
  uint64_t shift = 0;  // of the sender's blocks in those: it has a slice of the layers
  std::vector<std::byte*> blocks;
  std::vector<BlockId> ids;
  std::vector<BlockHash> keys;   // one a block; of a last one that is not full: of what it has
  bool offered = false;          // pull: the decode worker was told where our blocks are
  std::vector<uint32_t> pooled;  // for KvReady: blocks to be taken from the pool
};

class KvSender {
 public:
  using Done = std::function<void(const Result<>&)>;
  virtual ~KvSender() = default;
  virtual SendGranularity granularity() const = 0;
  // The bytes of the range are computed. `done` on a later turn.
  virtual void send(const std::shared_ptr<KvRoute>& route, const KvRange& range, Done done) = 0;
};

// What senders need of their worker; all lent, longer than the sender lives.
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
