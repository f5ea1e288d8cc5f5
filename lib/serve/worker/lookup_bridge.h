// Tells another engine's scheduler how many blocks of a prompt are cached.
// The scheduler asks the worker on its machine over ZeroMQ on a unix socket (REQ on its side).
//
//   question  [token_len u64 LE, hash of 32 bytes, ...]
//             one frame each: the prompt's tokens, and the full blocks asked about, each chained
//             on the one before
//   answer    [hits u64 LE]
//             of these blocks, from the first on, those that are cached here or in the pool
//             []
//             refused: a frame of another size, no hash or too many, or more blocks than the
//             tokens fill; reads as 0 hits
//
// Thread: the loop's. Source: global-prefix-cache chapter, section 7.4.3.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/metrics.h"
#include "rpc/local.h"

namespace mc::serve {

class LookupBridge {
 public:
  // Answers with the hits among the hashes, now or on a later turn.
  using Lookup = std::function<void(const std::vector<BlockHash>&, std::function<void(size_t)>)>;
  // Errors: those of rpc::LocalServer::open.
  static Result<std::unique_ptr<LookupBridge>> open(io::Loop& loop, const std::string& path,
                                                    uint32_t block_tokens, Lookup lookup,
                                                    Metrics& metrics);

 private:
  LookupBridge(uint32_t block_tokens, Lookup lookup, Metrics& metrics);
  void answer(const rpc::LocalServer::Frames& question, const rpc::LocalServer::Answer& reply);

  const uint32_t block_tokens_;
  const Lookup lookup_;
  Counter &asked_, &hits_, &refused_;
  std::unique_ptr<rpc::LocalServer> server_;
};

// The frames of a question, and the hits of an answer. Errors: kInvalid for a refusal.
std::vector<std::string> lookup_question(uint64_t tokens, const std::vector<BlockHash>& hashes);
Result<uint64_t> lookup_hits(const std::string& answer);

}  // namespace mc::serve
