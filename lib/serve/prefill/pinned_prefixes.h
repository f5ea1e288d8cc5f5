// Pins prefixes of prompts for other prefill workers, which read them.
//
// A pin has a lease. The bytes read are valid only if the pin lasted until the read ended. A pin
// grows while a request of this worker computes the blocks behind it: the reader asks for these
// with AwaitPrefix.
//
// Bounded: kPinsMax pins. Thread: the loop's.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/metrics.h"
#include "rpc/server.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/worker_core.h"
#include "xfer/engine.h"

namespace mc::serve {

class PinnedPrefixes {
 public:
  static constexpr size_t kPinsMax = 65536;
  // How many blocks behind the first `have` are computed here now.
  using Coming = std::function<size_t(std::span<const BlockHash> wanted, size_t have)>;

  PinnedPrefixes(xfer::Engine& transfer, std::shared_ptr<WorkerCore> core, uint32_t ranks,
                 Counter& pinned_blocks, Coming coming);

  // `expect`: a request that computes the prefix may come within this time.
  // Errors: kNotFound when nothing is cached, computed or expected; kExists; kBusy.
  Result<TxAllocated> pin(const std::string& request, std::vector<BlockHash> wanted, Duration lease,
                          Time now, Duration expect = {});
  void await(const AwaitPrefix& m, const rpc::Reply<PrefixMore>& reply, Time now);
  // Blocks were computed, or will not be, or time has passed: answers whom that concerns.
  void changed(Time now);
  bool end(TxId tx);  // false: there is no such pin
  void end(const std::string& request);
  size_t size() const { return pins_.size(); }

 private:
  struct Waiting {
    TxId tx = 0;
    uint32_t have = 0;
    Time until{};
    rpc::Reply<PrefixMore> reply;
  };
  struct Pin {
    std::string request;
    std::vector<BlockHash> wanted;
    Time expected{};  // until then a request may come that computes it
  };
  size_t coming(Pin& pin, size_t have, Time now) const;
  bool answer(const Waiting& w, Time now);  // false: it goes on waiting

  xfer::Engine& xfer_;
  const std::shared_ptr<WorkerCore> core_;
  const uint32_t ranks_;
  Counter& pinned_blocks_;
  const Coming computed_here_;
  std::unordered_map<TxId, Pin> pins_;
  std::unordered_map<std::string, TxId> by_request_;
  std::vector<Waiting> waiting_;
};

}  // namespace mc::serve
