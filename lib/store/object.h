// What the master knows of one object, and of the node that holds it. Plain state; Master and
// Members keep its rules.
//
// Thread: one owner. Pure: no clock, no I/O.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "store/allocator.h"
#include "store/evict.h"
#include "store/leases.h"
#include "store/messages.h"

namespace mc::store {

// Answers a call, at once or later; rpc::Reply<R> is one.
template <class R>
using Done = std::function<void(const Result<R>&)>;

// Answers a batch when its last item is decided.
template <class R>
class Gather {
 public:
  Gather(R reply, size_t items, Done<R> done)
      : reply_(std::move(reply)), open_(items), done_(std::move(done)) {}
  R& reply() { return reply_; }
  void decided() {
    if (--open_ == 0) done_(reply_);
  }

 private:
  R reply_;
  size_t open_;
  Done<R> done_;
};

struct Member;

struct Replica {
  Member* node = nullptr;
  uint64_t offset = 0;  // in the node's data area
};

enum class ObjectState : uint8_t {
  kWriting,    // granted to a writer
  kRecording,  // put_end came; its nodes are being told
  kComplete,   // readable
};

struct Object : Leased, Evictable {
  ObjectKey key;
  uint64_t bytes = 0, checksum = 0;
  Generation generation;
  ObjectState state = ObjectState::kWriting;
  Time started;
  std::vector<Replica> replicas;
  uint32_t recording = 0;                             // record orders not yet acknowledged
  std::vector<std::function<void(Outcome)>> waiting;  // put_ends, while kRecording
};

// An order to a node, and what to do when it was carried out (true) or the node is gone (false).
struct PendingOrder {
  Order order;
  std::function<void(bool, Time)> done;
};

struct Member {  // a mounted node
  Member(NodeRef who, Layout where)
      : ref(std::move(who)), layout(where), space(where.capacity, kPage) {}
  NodeRef ref;
  Layout layout;
  Allocator space;
  uint64_t mount = 0;      // unique to this mounting of it
  bool returns = false;    // it was mounted at an earlier master
  bool ready = false;      // its inventory is complete
  uint64_t releasing = 0;  // bytes taken whose release the node has not acknowledged
  std::unordered_map<uint64_t, Object*> holds;  // by offset: expiry costs O(objects of the node)
  std::deque<PendingOrder> orders;              // not yet acknowledged, by seq
  uint64_t next_seq = 1;
  Done<Beat> beat;  // the heartbeat that is held, if any
  Time beat_until = Time::max();
};

}  // namespace mc::store
