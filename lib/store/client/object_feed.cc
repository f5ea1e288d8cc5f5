#include "store/client/object_feed.h"

#include <algorithm>
#include <utility>

namespace mc::store {
namespace {

constexpr uint32_t kAnswerItems = 1000;                        // objects or events an answer
constexpr Duration kSnapshotsApart = std::chrono::seconds(1);  // at least
const std::string kDefaultTenant = "default";

EventTier tier_of(const ObjectInfo& o) {
  if (o.replicas > 0) return EventTier::kMemory;
  return o.disks > 0 ? EventTier::kDisk : EventTier::kUntold;
}

// Masters that do not tell the tier have what is stored in memory.
EventTier tier_of(const Event& e) {
  if (e.kind == static_cast<uint8_t>(EventKind::kRemoved)) return EventTier::kUntold;
  return e.tier == static_cast<uint8_t>(EventTier::kDisk) ? EventTier::kDisk : EventTier::kMemory;
}

std::string_view only_node(const Event& e) {
  return e.nodes.find(',') == std::string::npos ? std::string_view(e.nodes) : std::string_view();
}

}  // namespace

ObjectFeed::ObjectFeed(ObjectFeedOptions options, Time now)
    : options_(std::move(options)), due_(now), heard_(now), pause_(options_.pause) {}

Time ObjectFeed::deadline() const { return asked_ ? Time::max() : due_; }

ObjectFeed::Question ObjectFeed::ask(Time now) {
  if (asked_ || now < due_) return {};
  if (state_ == State::kPaused) begin(now);
  if (state_ == State::kFollowing && again_ && now - began_ >= kSnapshotsApart) begin(now);
  asked_ = true;
  if (state_ == State::kListing && !replay_next_)
    return List{.prefix = options_.prefix, .after = after_, .limit = kAnswerItems};
  return Replay{.from = next_, .limit = kAnswerItems};
}

void ObjectFeed::begin(Time now) {
  state_ = State::kListing;
  replay_next_ = again_ = false;
  began_ = now;
  listed_ = 0;
  next_ = 0;
  after_.clear();
  if (on_begin) on_begin();
}

void ObjectFeed::drop() {
  whole_ = false;
  if (on_drop) on_drop();
}

void ObjectFeed::heard(Time now) {
  heard_ = now;
  due_ = now;
  trouble_.clear();
  if (state_ == State::kFollowing && now - began_ >= options_.pause_max) pause_ = options_.pause;
}

void ObjectFeed::rest(Time now) {
  state_ = State::kPaused;
  due_ = now + pause_;
  pause_ = std::min(2 * pause_, options_.pause_max);
}

void ObjectFeed::fault(const std::string& what, Time now) {
  ++faults_;
  trouble_ = what;
  drop();
  rest(now);
}

// False: another master, or the same one anew, answers. What is known is of the old one.
bool ObjectFeed::same_master(uint64_t epoch, Time now) {
  if (epoch_ == epoch) return true;
  const bool first = std::exchange(epoch_, epoch) == 0;
  if (first) return true;
  drop();
  state_ = State::kPaused;
  due_ = std::max(now, began_ + kSnapshotsApart);
  return false;
}

void ObjectFeed::failed(const Error& error, Time now) {
  asked_ = false;
  trouble_ = error.what;
  if (now - heard_ >= options_.lost_after) {
    drop();
    state_ = State::kPaused;
  }
  if (state_ == State::kListing) state_ = State::kPaused;  // its pages do not join to later ones
  due_ = now + options_.pause;
}

void ObjectFeed::listed(const Listed& page, Time now) {
  asked_ = false;
  if (state_ != State::kListing || replay_next_) return fault("a page that nobody asked for", now);
  if (!same_master(page.epoch, now)) return;
  heard(now);
  if (next_ == 0) next_ = page.next_event;
  if (page.next_event < next_) return fault("the numbers of its events went back", now);
  for (const ObjectInfo& o : page.items) {
    if (o.key <= after_ || !o.key.starts_with(options_.prefix))
      return fault("a page that is not in order", now);
    after_ = o.key;
    if (++listed_ > options_.objects_max) return fault("a list without an end", now);
    if (const EventTier tier = tier_of(o); tier != EventTier::kUntold && on_object)
      on_object(o.key, tier, o.node);
  }
  if (page.more && page.items.empty()) return fault("an empty page, and more", now);
  replay_next_ = page.more;
  if (page.more) return;
  state_ = State::kFollowing;
  whole_ = true;
  ++snapshots_;
  if (on_whole) on_whole();
}

void ObjectFeed::replayed(const Replayed& answer, Time now) {
  asked_ = false;
  if (state_ == State::kPaused || (state_ == State::kListing && !replay_next_))
    return fault("events that nobody asked for", now);
  if (!same_master(answer.epoch, now)) return;
  heard(now);
  replay_next_ = false;
  if (answer.next < next_) return fault("the numbers of its events went back", now);
  if (answer.gap) {  // a new snapshot; not at once, where events are lost faster than it is taken
    state_ = State::kPaused;
    due_ = std::max(now, began_ + kSnapshotsApart);
    return;
  }
  for (const Event& e : answer.events) {
    if (e.seq != next_) return fault("events out of order", now);
    ++next_;
    if (e.kind == static_cast<uint8_t>(EventKind::kJoined)) again_ = true;
    if (e.kind < static_cast<uint8_t>(EventKind::kStored) ||
        e.kind > static_cast<uint8_t>(EventKind::kMoved))
      continue;
    if (!e.tenant.empty() && e.tenant != kDefaultTenant) continue;
    if (e.key.starts_with(options_.prefix) && on_object) on_object(e.key, tier_of(e), only_node(e));
  }
  if (answer.events.empty() && next_ < answer.next)
    return fault("events that it has and does not send", now);
  // While listing, the next page is due at once.
  if (state_ == State::kFollowing && next_ >= answer.next) due_ = now + options_.period;
}

}  // namespace mc::store
