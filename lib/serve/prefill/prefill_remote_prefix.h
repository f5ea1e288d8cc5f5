// Prefixes between prefill workers: what this one pins for others, and what it reads from them.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "serve/prefill/pinned_prefixes.h"
#include "serve/prefill/prefill_shared.h"
#include "serve/prefill/prefix_fetch.h"

namespace mc::serve {

class RemotePrefixes {
 public:
  explicit RemotePrefixes(PrefillShared& shared);

  // Pins leading blocks of the prompt, and those that a request here computes or fetches.
  // Errors: kInvalid; kUnsupported; kExists; those of PinnedPrefixes::pin.
  Result<TxAllocated> pin(const TxAllocate& m, Time now);
  void await(const AwaitPrefix& m, const rpc::Reply<PrefixMore>& reply, Time now) {
    pinned_.await(m, reply, now);
  }
  bool end(TxId tx) { return pinned_.end(tx); }  // false: there is no such pin
  void end(const std::string& request) { pinned_.end(request); }
  // Blocks were computed, or will not be, or time has passed: readers may hear of it.
  void changed() { pinned_.changed(shared_.loop.now()); }
  size_t pinned() const { return pinned_.size(); }

  // Reads the missing blocks of the prefix into the request's own. `done` on a later turn: it has
  // so many valid leading blocks, or 0: none came.
  using Done = std::function<void(size_t valid)>;
  void fetch(const PrefillJobPtr& job, const RemotePrefix& prefix, Done done);

 private:
  size_t coming_blocks(std::span<const BlockHash> wanted, size_t have) const;
  size_t fetched(const PrefillJobPtr& job, const std::vector<BlockId>& read, size_t first);

  PrefillShared& shared_;
  PinnedPrefixes pinned_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // fetches check it
};

}  // namespace mc::serve
