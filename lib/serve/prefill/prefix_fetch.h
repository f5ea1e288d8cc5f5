// Reads a prefix that another prefill worker has pinned, into the blocks of a request.
//
// Blocks that the holder still computes are read as they appear: a fetch asks for more until all
// are here, none will come, or its patience ends. That begins anew while blocks come fast enough.
// At last it ends the holder's pin; only if that was still there are the bytes valid. The blocks
// read into stay pinned meanwhile: a request that ends, or finds the prefix cached after all, must
// not free them for others.
//
// Thread: the loop's.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/client.h"
#include "serve/connector/kv_shape.h"
#include "serve/connector/kv_transfer.h"
#include "serve/protocol/messages.h"
#include "serve/runtime/worker_core.h"

namespace mc::serve {

struct PrefixFetched {
  std::vector<BlockId> read;  // valid leading blocks of those given
  double read_ms = 0;         // reading them, without what was waited for
  bool failed = false;
};

class PrefixFetch : public std::enable_shared_from_this<PrefixFetch> {
 public:
  struct Parts {
    io::Loop& loop;
    KvTransfer& transfer;  // outlives the worker's `alive`
    WorkerCore& core;
    const KvShape& shape;
    Duration read_budget, call_budget;
    std::weak_ptr<bool> alive;  // of the worker: nothing happens after it
  };
  using Done = std::function<void(const PrefixFetched&)>;
  // `into`: for the blocks from `first` on of the prefix. `holder` gives nullptr when it cannot be
  // reached. `wanted`: false once the request has failed.
  static void start(const Parts& parts, const std::string& request, const RemotePrefix& prefix,
                    size_t first, std::vector<BlockId> into, std::function<rpc::Client*()> holder,
                    std::function<bool()> wanted, Done done);

 private:
  PrefixFetch(const Parts& parts, const RemotePrefix& prefix) : parts_(parts), prefix_(prefix) {}
  void go_on();  // reads what there is, or asks for more, or ends
  bool patient();
  void ask();
  void read(size_t upto);
  void end(const std::string& trouble);
  void unreachable();
  void finish(bool valid);

  const Parts parts_;
  RemotePrefix prefix_;
  std::string request_;
  size_t first_ = 0, next_ = 0;  // of the prefix: given, and not read yet
  size_t counted_ = 0;           // of the prefix: read when the patience began
  std::vector<BlockId> into_;
  std::function<rpc::Client*()> holder_;
  std::function<bool()> wanted_;
  Done done_;
  Time until_{};
  PrefixFetched fetched_;
};

}  // namespace mc::serve
