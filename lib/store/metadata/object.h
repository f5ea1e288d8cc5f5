// Types of the master beside its table: nodes, rare object attributes, pending answers. Plain
// state; Master and Members keep its rules.
//
// Thread: one owner. Pure: no clock, no I/O.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "store/metadata/allocator.h"
#include "store/metadata/table.h"
#include "store/protocol/node_messages.h"

namespace mc::store {

// Answers a call, at once or later; rpc::Reply<R> is one.
template <class R>
using Done = std::function<void(const Result<R>&)>;

// Answers a batch when its last part has a result.
template <class R>
class AckTracker {
 public:
  AckTracker(R reply, size_t parts, Done<R> done)
      : reply_(std::move(reply)), open_(parts), done_(std::move(done)) {}
  R& reply() { return reply_; }
  void expect(size_t more) { open_ += more; }
  void decided() {
    if (--open_ == 0) done_(std::move(reply_));
  }

 private:
  R reply_;
  size_t open_;
  Done<R> done_;
};
using Outcoming = std::shared_ptr<AckTracker<Outcomes>>;

struct Group;

class Removal;  // store/metadata/removals.h
using RemovalRef = std::shared_ptr<Removal>;

// Attributes that few objects have; the table's Object says whether they exist.
struct Extras {
  std::vector<Replica> replicas;  // beyond the first
  Time keep_until = Time::max();  // of a kContext or a pin
  Group* group = nullptr;         // of Tenants
};

// A put that its nodes are recording: how many have not acknowledged, and who waits.
struct Recording {
  uint32_t open = 0;
  Id next = kNoId;
  Id& spare() { return next; }
  struct Waiting {
    Outcoming acks;
    size_t item = 0;
  };
  Waiting first;
  std::vector<Waiting> more;  // repeated put_end calls
};

// An order to a node, and its subject.
struct PendingOrder {
  std::shared_ptr<Order> order;
  Id object = kNoId;   // of a kRecord
  Id range = kNoId;    // of a kForget: freed by its acknowledgement
  uint64_t task = 0;   // of a copy: the record of its target
  RemovalRef removal;  // that waits for it
};

struct Member {  // a mounted node
  Member(NodeRef who, Layout where)
      : ref(std::move(who)), layout(std::move(where)), space(layout.span(), kPage) {}
  NodeRef ref;
  Layout layout;
  Allocator space;
  std::string host, domain;
  std::string release;    // its build
  uint64_t mount = 0;     // unique to this mounting of it
  Generation mounted_by;  // names it to the node: Mounted::fence
  // Whether a message of the node belongs to it. Those of older nodes do not say.
  bool mounted_as(Generation said) const { return !said || said == mounted_by; }
  bool returns = false;                // an earlier master had mounted it
  bool ready = false;                  // its inventory is complete
  bool tier = false;                   // its disk's inventory has not come yet
  bool draining = false;               // it gets nothing new
  bool gone = false;                   // lost; its objects are leaving the table
  Time ready_since;                    // for slow start
  Time checks_paid;                    // when it has time for checks again (replica_checks.h)
  uint64_t releasing = 0;              // bytes taken whose release the node has not acknowledged
  uint64_t objects = 0;                // replicas it holds
  std::deque<PendingOrder> orders;     // not yet acknowledged, by seq
  std::vector<PendingOrder> unfenced;  // to forget, carried out, with a late writer
  uint64_t next_seq = 1;
  bool told = true;           // its answers carried all orders; false: answer its heartbeat now
  Done<HeartbeatReply> beat;  // of the heartbeat that the master holds, if any
  Time beat_until = Time::max();
};

}  // namespace mc::store
