// Moves KV between a worker's blocks and another worker's.
// A prefill worker writes into the blocks that a decode worker reserved (push), or the decode
// worker reads the blocks that the prefill worker computed (pull). A layer, or a range of whole
// blocks, is one batch of the transfer engine. Blocks at equal distances on both sides are one
// strided request.
//
// Requires: memory that moves belongs to the transfer until `done` ran.
// Thread: the loop's. The destructor cancels what has not finished: no byte is touched and no
// callback runs after it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "io/loop.h"
#include "xfer/engine.h"

namespace mc::serve {

struct KvPeer {  // the other side
  xfer::SegmentHandle segment = 0;
  std::vector<uint64_t> offsets;  // in the segment, one a block
  xfer::Guard guard;
};

struct KvRange {
  size_t first = 0, last = 0;  // blocks [first, last)
  uint64_t at = 0, bytes = 0;  // of each block: a layer, or the whole
  Time deadline = Time::max();
};

// `local`: the blocks of the sequence, in the order of peer.offsets.
std::vector<xfer::Request> plan_transfer(xfer::Op op, std::span<std::byte* const> local,
                                         const KvPeer& peer, const KvRange& range);

class KvTransfer {
 public:
  using Done = std::function<void(Result<>)>;
  KvTransfer(io::Loop& loop, xfer::Engine& engine, Metrics& metrics);
  ~KvTransfer();
  KvTransfer(const KvTransfer&) = delete;
  KvTransfer& operator=(const KvTransfer&) = delete;

  // The handle of another worker's segment. `descriptor` may be empty (no buffers) if this worker
  // has seen it before. A worker tells its segment with each reservation: what another process says
  // later takes the place of what was known, though its clock may be behind. Errors: kStale: send
  // the full descriptor.
  Result<xfer::SegmentHandle> segment(const xfer::SegmentDescriptor& descriptor);
  // `done` on a later turn, with the first error.
  void run(const std::vector<xfer::Request>& requests, Done done);

 private:
  void finished(xfer::BatchId batch, size_t requests, uint64_t bytes, Time since, const Done& done);

  io::Loop& loop_;
  xfer::Engine& engine_;
  std::set<xfer::BatchId> batches_;
  struct Known {
    Generation generation;
    uint64_t instance;  // of the process
    xfer::SegmentHandle handle;
  };
  std::map<std::string, Known> segments_;  // by node
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Counter &bytes_, &failures_;
  BucketHistogram& seconds_;
};

}  // namespace mc::serve
