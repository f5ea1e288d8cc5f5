// Finds the few nodes that choose() must compare, in time logarithmic in the cluster.
//
// Of the prefill nodes that hold equally much of a prompt choose() can only take the best placed:
// the one with the shortest queue (or fewest requests or tokens, as the policy has it), and of
// equals the one that choose() would take. So a shortlist has one node for each length that is
// held, and one that holds the most. Decode nodes are sorted by the time of their next step.
//
// choose() over a shortlist decides as over all nodes, bit by bit: the same nodes, numbers and
// reason. Only the margin and the list of candidates may be shorter. This holds for nodes of one
// kind. A node with a longer queue can still win where its link is less congested: of nodes that
// hold equally much those are listed that no other one beats in both. Where a queue was corrected
// (Ledger::correct), a node's rank is a bound: it may be worse placed, and never better. Such a
// node is listed too, unless one of an exact rank beats it.
//
// A node's queue has two ages. While its first job is within its time the queue shrinks with the
// clock, and ends at a fixed time. Once that job is late the queue is fixed. Each age has its own
// order, and a node changes over once for each change of its queue. A third order has the nodes
// that were never assigned a request. In a young cluster these are many, sort before all others and
// mostly hold nothing; a search for a holder skips them.
//
// Thread: one owner. Pure: time is an argument. Costs: a change and a choice take the logarithm of
// the nodes. At most kLookedAt nodes that hold equally much are all compared. Of more, the search
// follows the order of queues up to a node with an exact rank and a free link, for kSteps; then it
// compares all.
#pragma once
#include <compare>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "sched/cost.h"
#include "sched/ledger.h"
#include "sched/matches.h"
#include "sched/policy.h"
#include "sched/tournament.h"

namespace mc::sched {

struct CandidateRank {  // what a prefill node is ranked by, as in PrefillView
  Time first_ends{};
  Duration behind{0};
  uint64_t tokens = 0, requests = 0, assigned = 0;
  bool exact = true;  // else a bound: the node may be worse placed
  Congestion link{};  // where the policy looks at it
  static CandidateRank of(const Ledger& ledger, uint64_t requests, uint64_t assigned) {
    return {.first_ends = ledger.first_ends(),
            .behind = ledger.behind(),
            .tokens = ledger.tokens(),
            .requests = requests,
            .assigned = assigned};
  }
};

class PrefillShortlist {
 public:
  static constexpr size_t kLookedAt = 64, kSteps = 64;

  // Nodes are numbers from 0; their names break ties.
  PrefillShortlist(PolicyOptions options, const std::vector<std::string>& names);

  void put(uint32_t node, const CandidateRank& rank);  // it is usable, with that rank
  void drop(uint32_t node);                            // it is not; may be so already
  size_t size() const { return usable_.size(); }

  struct Listed {
    uint32_t node;
    bool usable;  // else it is there for what it holds: others can fetch that
    bool operator<(const Listed& o) const { return node < o.node; }
  };
  // In the order of their numbers. `each_length`: also where the policy does not need it, the best
  // placed node of each length that is held.
  std::vector<Listed> pick(const Matches& matches, const Ask& ask, Time now,
                           bool each_length = false);

 private:
  struct Key {  // smaller is better
    int64_t first;
    uint64_t tokens, assigned;
    uint32_t name_rank, node;
    auto operator<=>(const Key&) const = default;
  };
  enum class Age : uint8_t { kTicking, kStill, kFresh };  // in which order it is
  struct Node {
    uint32_t name_rank = 0;  // of its name
    CandidateRank rank;
    bool usable = false;
    Age age = Age::kStill;
    uint64_t few = 0;     // the pick for which it is one of the few
    uint64_t listed = 0;  // the pick that listed it
  };
  class InOrder;
  struct Best;

  bool by_queue() const { return by_ == By::kQueue; }
  Key key(uint32_t node, int64_t first) const;
  Key still_key(uint32_t node) const;
  Key ticking_key(uint32_t node) const;
  Key key_at(uint32_t node, Time now) const;
  Age age_of(const CandidateRank& rank) const;
  bool any_fresh(const Matches& matches, int at) const;
  void place(uint32_t node);
  void displace(uint32_t node);
  void settle(Time now);
  void list(uint32_t node, bool usable, std::vector<Listed>& out);
  void list(const Best& best, std::vector<Listed>& out);
  void add(uint32_t node, Time now, Best& to) const;
  Best best_of(const Matches& matches, int at, Time now) const;
  void best_placed(Time now, std::vector<Listed>& out);
  void best_holders(const Matches& matches, Time now, std::vector<Listed>& out);
  std::optional<uint32_t> holds_most(const Matches& matches) const;
  std::optional<uint32_t> drawn(const Ask& ask, Time now) const;

  enum class By { kQueue, kRequests, kTokens, kDraw };
  PolicyOptions options_;
  By by_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> usable_;  // in order
  std::vector<uint64_t> usable_bits_, fresh_bits_;
  Tournament<Key> ticking_;                      // by when the queue ends
  Tournament<Key> still_, fresh_;                // by how long it is
  Tournament<std::pair<Time, uint32_t>> turns_;  // when a ticking one becomes still
  Time settled_ = Time::min();
  uint64_t picks_ = 0;
};

class DecodeShortlist {
 public:
  DecodeShortlist(const Cost& cost, const std::vector<std::string>& names);

  void put(uint32_t node, uint64_t requests, uint64_t context_tokens, int64_t free_tokens);
  void drop(uint32_t node);
  size_t size() const { return usable_; }
  // That with the shortest next step of those with so much room; with the shortest when none has.
  std::optional<uint32_t> pick(uint64_t room_tokens) const;

 private:
  struct Key {
    double step_ms;
    uint64_t requests;
    uint32_t name_rank, node;
    auto operator<=>(const Key&) const = default;
  };
  const Cost& cost_;
  std::vector<uint32_t> ranks_;
  Tournament<Key> order_;
  Tournament<std::pair<int64_t, uint32_t>> room_;  // less free tokens: the emptiest is the best
  size_t usable_ = 0;
};

}  // namespace mc::sched
