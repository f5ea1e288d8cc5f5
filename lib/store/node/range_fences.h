// The ranges of a node that its master may not give on yet, because a late writer may still write
// there. A range that is forgotten gets a higher guard word first, and is then fenced through the
// engine (xfer::Engine::fence). One writer that stands still keeps its own range out of use, and no
// other.
//
// Thread: its owner's.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "store/protocol/node_messages.h"
#include "xfer/engine.h"

namespace mc::store {

class RangeFences {
 public:
  using At = std::function<std::byte*(uint64_t offset)>;  // of the node's segments
  RangeFences(xfer::Engine& engine, const Layout& layout, At at)
      : engine_(engine), layout_(layout), at_(std::move(at)) {}

  // Of all pieces of the record.
  void raise_guards(const ObjectRecord& record, Generation generation) const;
  // Of an order to forget it.
  void forget(const Order& order);
  // Of what holds no object: the master that mounts the node knows no earlier grant.
  void forget_free(const std::vector<Extent>& free, Generation generation);
  bool nics_ended();  // all queue pairs that there were by then are closed
  // Asks the engine. Returns: when to ask again, `most` at most.
  Duration fence(Duration most);
  // Acknowledges the orders up to `done`, and names those whose ranges are not fenced.
  void tell(Heartbeat& heartbeat, uint64_t done) const;
  // For a master that did not give these orders: it will order to forget them.
  void tell(Inventory& inventory) const;
  void forget_orders();

 private:
  xfer::Engine& engine_;
  const Layout& layout_;
  const At at_;
  std::vector<xfer::FencedRange> ranges_;  // by id: the order; 0: of an earlier mount
  xfer::FencedRange nics_;
  Duration ask_after_ = std::chrono::milliseconds(10);
};

}  // namespace mc::store
