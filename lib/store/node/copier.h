// Carries out the master's copy orders on the target node. It reads a value from another node's
// segment into a range of this node's memory, and checks its checksum. It also checks values that
// lie there.
//
// Thread: its owner's loop. One worker thread makes the copies and checks, one at a time, checks
// first; the answers come on the loop. Every copy ends within `budget`. After cancel() nothing is
// written to that range.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "io/loop.h"
#include "store/protocol/node_messages.h"
#include "xfer/engine.h"

namespace mc::store {

class Copier {
 public:
  using Answer = std::function<void(uint64_t task, const Result<>&)>;

  using At = std::function<std::byte*(uint64_t offset)>;

  // `at`: address of an offset in the node's segments.
  Copier(io::Loop& loop, xfer::Engine& engine, At at, Duration budget, Answer answer);
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  void copy(const Order& order);
  void check(const Order& order);
  void cancel(uint64_t offset);  // of the copy's first byte; a cancelled copy is not answered
  void cancel_all();

 private:
  void run();
  Result<> make(const Order& order);
  Result<> read(const Order& order, xfer::SegmentHandle source);
  Result<> verify(const Order& order) const;
  void cancel_current();  // after it returns the copy writes nothing

  io::Loop& loop_;
  xfer::Engine& engine_;
  const At at_;
  const Duration budget_;
  const Answer answer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Mutex mutex_;
  Condition changed_;
  std::deque<Order> waiting_ MC_GUARDED_BY(mutex_);
  uint64_t current_ MC_GUARDED_BY(mutex_) = 0;  // offset of the copy being made, if busy_
  bool busy_ MC_GUARDED_BY(mutex_) = false;
  bool cancelled_ MC_GUARDED_BY(mutex_) = false;   // the current one
  bool starting_ MC_GUARDED_BY(mutex_) = false;    // it is being submitted
  bool cancelling_ MC_GUARDED_BY(mutex_) = false;  // its batch is in use by cancel_current()
  std::optional<xfer::BatchId> batch_ MC_GUARDED_BY(mutex_);
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace mc::store
