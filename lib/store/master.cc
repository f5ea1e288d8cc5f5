// What Master's other parts stand on: its tables, time, and the room that eviction makes.
#include "store/master.h"

#include <algorithm>
#include <utility>

namespace mc::store {
namespace {
constexpr size_t kSkipMax = 1024;  // objects on unreachable nodes passed over in one eviction
}

void MasterOptions::describe(OptionList& v) {
  v("lease-ttl", lease_ttl, "how long a read keeps its object in place");
  v("client-ttl", client_ttl, "a node silent for this long is gone, with what it holds");
  v("suspect-after", suspect_after, "a node silent for this long is given nothing new");
  v("put-discard", put_discard, "a put not finished by then is discarded");
  v("put-wait", put_wait, "how long a put waits for room in a full pool");
  v("rebuild-wait", rebuild_wait,
    "how long after its start a key not known may yet be reported by a node; 0: not at all");
  v("high-watermark", high_watermark, "fill fraction of the pool that starts eviction");
  v("eviction-ratio", eviction_ratio, "fraction of the pool that one eviction frees");
}

Result<> MasterOptions::check() const {
  if (!(high_watermark > 0 && high_watermark <= 1))
    return fail(Code::kInvalid, "high-watermark %s: want a fraction in (0, 1]",
                number_text(high_watermark).c_str());
  if (!(eviction_ratio >= 0 && eviction_ratio <= high_watermark))
    return fail(Code::kInvalid, "eviction-ratio %s: want a fraction in [0, high-watermark]",
                number_text(eviction_ratio).c_str());
  for (const Duration d : {lease_ttl, client_ttl, suspect_after, put_discard})
    if (d <= Duration::zero())
      return fail(Code::kInvalid, "a period of %s: want more than nothing", to_text(d).c_str());
  if (rebuild_wait < Duration::zero())
    return fail(Code::kInvalid, "rebuild-wait %s: want 0 or more", to_text(rebuild_wait).c_str());
  if (suspect_after > client_ttl)
    return fail(Code::kInvalid, "suspect-after %s is longer than client-ttl %s",
                to_text(suspect_after).c_str(), to_text(client_ttl).c_str());
  return {};
}

Master::Master(const MasterOptions& options, uint64_t epoch, uint64_t seed, Time started)
    : options_(options),
      epoch_(epoch),
      members_({options.client_ttl, options.suspect_after}, seed),
      rebuild_(options.rebuild_wait, options.client_ttl, started),
      leases_(options.lease_ttl) {}

Generation Master::next_generation() {
  if (++counter_ > UINT32_MAX) {
    ++epoch_;
    counter_ = 1;
  }
  return Generation{epoch_ << 32 | counter_};
}

Object* Master::find(const ObjectKey& key) const {
  const auto it = objects_.find(key);
  return it == objects_.end() ? nullptr : it->second.get();
}

Object* Master::find_complete(const ObjectKey& key) const {
  Object* object = find(key);
  return object != nullptr && object->state == ObjectState::kComplete ? object : nullptr;
}

Object& Master::insert(const ObjectKey& key, uint64_t bytes, Generation generation, Time now) {
  auto& slot = objects_[key];
  MC_CHECK(slot == nullptr);
  slot = std::make_unique<Object>();
  slot->key = key;
  slot->bytes = bytes;
  slot->generation = generation;
  slot->started = now;
  return *slot;
}

std::unique_ptr<Object> Master::take(Object& object) {
  const auto it = objects_.find(object.key);
  auto owned = std::move(it->second);
  objects_.erase(it);
  leases_.drop(object);
  lru_.drop(object);
  if (object.state == ObjectState::kComplete) {
    stored_.erase(object.key);
    object_bytes_ -= object.bytes;
  }
  for (const Replica& r : object.replicas) r.node->holds.erase(r.offset);
  return owned;
}

void Master::forget_range(Member& node, const Record& record, std::function<void()> done) {
  const uint64_t span = node.space.rounded(record.bytes);
  node.releasing += span;
  members_.order(node, OrderKind::kForget, record, next_generation(),
                 [this, name = node.ref.name, mount = node.mount, offset = record.offset, span,
                  done = std::move(done)](bool ok, Time) {
                   Member* member = members_.find_mount(name, mount);
                   if (ok && member != nullptr) {
                     member->space.free(offset);
                     member->releasing -= span;
                     room_changed_ = true;
                   }
                   if (done) done();
                 });
}

void Master::release(Object& object, const std::function<void()>& each_forgotten) {
  const auto owned = take(object);
  for (const Replica& r : owned->replicas)
    forget_range(*r.node, {owned->key, r.offset, owned->bytes, owned->checksum, owned->generation},
                 each_forgotten);
}

void Master::abandon(Object& object, Time now) {
  const auto owned = take(object);
  ++totals_.puts_discarded;
  for (const Replica& r : owned->replicas)
    quarantine_.push_back({now + options_.put_discard, owned->key, owned->generation,
                           r.node->ref.name, r.node->mount, r.offset, owned->bytes});
}

void Master::expire_leases(Time now) {
  while (Leased* leased = leases_.expired(now)) lru_.touch(static_cast<Object&>(*leased));
}

void Master::expire_grants(Time now) {
  for (; !writing_.empty() && writing_.front().when <= now; writing_.pop_front()) {
    Object* object = find(writing_.front().key);
    if (object != nullptr && object->generation == writing_.front().generation &&
        object->state == ObjectState::kWriting)
      abandon(*object, now);
  }
  for (; !quarantine_.empty() && quarantine_.front().when <= now; quarantine_.pop_front()) {
    const Discard& d = quarantine_.front();
    if (Member* node = members_.find_mount(d.node, d.mount))
      forget_range(*node, {d.key, d.offset, d.bytes, 0, d.generation}, {});
  }
}

bool Master::on_healthy_node(const Object& object, Time now) const {
  return std::any_of(object.replicas.begin(), object.replicas.end(), [&](const Replica& r) {
    return !members_.liveness().suspect(r.node->ref.name, now);
  });
}

// Stops with `keep` objects left.
void Master::evict(uint64_t bytes, size_t keep, Time now) {
  uint64_t freed = 0;
  for (size_t skipped = 0; freed < bytes && lru_.size() > keep;) {
    Evictable* victim = lru_.victim();
    auto& object = static_cast<Object&>(*victim);
    if (!on_healthy_node(object, now)) {  // nobody there could give the room back
      if (++skipped > std::min(kSkipMax, lru_.size())) break;
      lru_.touch(object);
      continue;
    }
    for (const Replica& r : object.replicas) freed += r.node->space.rounded(object.bytes);
    ++totals_.evicted_objects;
    totals_.evicted_bytes += object.bytes;
    release(object, {});
  }
}

void Master::make_room(Time now) {
  if (std::exchange(filled_,
                    false)) {  // a pool that is full because nodes left or mount may stay so
    const uint64_t ahead = bytes_to_evict(members_.used(), members_.capacity(),
                                          options_.high_watermark, options_.eviction_ratio);
    if (ahead > 0) evict(ahead, 1, now);  // an object larger than the reserve stays
  }
  uint64_t demand = 0;
  for (const ParkedPut& put : parked_puts_)
    for (const size_t i : put.open) demand += put.message.items[i].bytes + kPage;
  const uint64_t coming = members_.releasing(now);
  if (demand > coming) evict(demand - coming, 0, now);
}

uint64_t Master::nodes(Time now) const {
  const uint64_t mounted = members_.all().size();
  return rebuild_.over(now) ? mounted : std::max(mounted, rebuild_.expected());
}

void Master::finish(Time now) {
  expire_leases(now);
  if (room_changed_) retry_puts(now);
  make_room(now);
  members_.answer_beats(now, epoch_, nodes(now));
}

void Master::tick(Time now) {
  for (const auto& change : members_.liveness().tick(now)) {
    if (change.kind != rpc::Membership::Change::Kind::kDead) continue;
    ++totals_.nodes_expired;
    drop_node(change.node, now);
  }
  expire_grants(now);
  expire_parked(now);
  finish(now);
}

Time Master::deadline() const {
  Time when = members_.deadline();
  if (!writing_.empty()) when = std::min(when, writing_.front().when);
  if (!quarantine_.empty()) when = std::min(when, quarantine_.front().when);
  for (const ParkedPut& put : parked_puts_) when = std::min(when, put.deadline);
  if (!parked_puts_.empty()) when = std::min(when, leases_.next_expiry());
  if (!parked_looks_.empty()) when = std::min(when, parked_looks_.begin()->first);
  return when;
}

}  // namespace mc::store
