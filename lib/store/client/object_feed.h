// Decides how to follow the objects of a master: first a snapshot (list), then changes (replay).
//
// One question is open at a time. Between the pages of a snapshot it asks for changes, so that a
// long snapshot does not outlive the master's event log. After events that are no
// longer kept (a gap), or when a node brought objects, a new snapshot is taken and the old view
// serves meanwhile. The view is dropped when the master's epoch changes, when no answer came for
// `lost_after`, and when an answer cannot be true; then it is rebuilt, after a pause that grows.
//
//   feed.ask(now)       -> what to ask, if anything
//   feed.listed(...), feed.replayed(...), feed.failed(...)
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "base/time.h"
#include "store/protocol/query_messages.h"

namespace mc::store {

struct ObjectFeedOptions {
  std::string prefix;              // of the keys to follow, of the tenant `default`
  uint64_t objects_max = 1 << 26;  // in one snapshot; more are a fault
  Duration period = std::chrono::milliseconds(100);  // between questions, when nothing changes
  Duration answer_within = std::chrono::seconds(2);  // then a question has failed
  Duration lost_after = std::chrono::seconds(3);
  Duration pause = std::chrono::seconds(1);  // after a failure; after faults doubled, to pause_max
  Duration pause_max = std::chrono::seconds(30);
};

class ObjectFeed {
 public:
  explicit ObjectFeed(ObjectFeedOptions options, Time now);

  // A key has this tier now; kUntold: it is gone. `node`: the only one that has it there; empty:
  // several, or not told. Between on_begin and on_whole that is of the snapshot, else of the view.
  std::function<void(const ObjectKey& key, EventTier tier, std::string_view node)> on_object;
  std::function<void()> on_begin;  // a snapshot begins; an earlier one that is not whole is void
  std::function<void()> on_whole;  // the snapshot is complete: it replaces the view
  std::function<void()> on_drop;   // the view and the snapshot begun are not true any more

  using Question = std::variant<std::monostate, List, Replay>;
  Question ask(Time now);  // then its answer is awaited
  Time deadline() const;   // when to ask, or to look again; Time::max() while an answer is awaited
  void listed(const Listed& page, Time now);
  void replayed(const Replayed& answer, Time now);
  void failed(const Error& error, Time now);

  bool whole() const { return whole_; }  // a view is in use
  uint64_t epoch() const { return epoch_; }
  uint64_t snapshots() const { return snapshots_; }        // complete ones
  uint64_t faults() const { return faults_; }              // answers that could not be true
  const std::string& trouble() const { return trouble_; }  // the last failure; empty: none since

 private:
  enum class State : uint8_t { kPaused, kListing, kFollowing };
  void begin(Time now);
  void drop();
  void fault(const std::string& what, Time now);
  void rest(Time now);
  bool same_master(uint64_t epoch, Time now);
  void heard(Time now);

  const ObjectFeedOptions options_;
  State state_ = State::kPaused;
  bool asked_ = false, whole_ = false;
  bool replay_next_ = false;  // while listing: between two pages
  bool again_ = false;        // a snapshot is due: a node brought objects
  Time due_, heard_, began_;
  Duration pause_;
  uint64_t epoch_ = 0, next_ = 0;  // of the master; the event to ask for
  uint64_t listed_ = 0, snapshots_ = 0, faults_ = 0;
  ObjectKey after_;
  std::string trouble_;
};

}  // namespace mc::store
