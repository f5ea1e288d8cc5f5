// Ends of puts: publication, once the nodes have recorded the object, and rollback.
#include <algorithm>

#include "store/master/master.h"
#include "store/metadata/batch_answers.h"

namespace mc::store {

void Master::handle(const PutEnd& m, Time now, Done<Outcomes> done) {
  if (auto sane = check_batch(m.items.size()); !sane) return done(fail(sane.error()));
  if (m.items.empty()) return done(Outcomes{epoch_, {}});
  const uint16_t tenant = tenants_.find(m.tenant);
  const auto acks = std::make_shared<AckTracker<Outcomes>>(
      Outcomes{epoch_, std::vector<Outcome>(m.items.size())}, m.items.size(), std::move(done));
  table_.warm(
      tenant, m.items, [](const PutClaim& claim) { return std::string_view(claim.key); },
      [](const Object& object) {
        if (object.node != nullptr) object.node->space.fetch(object.range);
      });
  for (size_t i = 0; i < m.items.size(); ++i) end_put(tenant, m.items[i], acks, i);
  finish(now);
}

// A promoted object must still be on its disk; otherwise it was removed meanwhile.
bool Master::still_true(const Object& object) const {
  if (!object.promoted) return true;
  const auto disk = tier_.objects().find(disk_name(object.tenant, object.key()));
  return disk && disk->bytes == object.bytes && disk->checksum == object.checksum;
}

void Master::end_put(uint16_t tenant, const PutClaim& claim, const Outcoming& acks, size_t item) {
  Object* object = find(tenant, claim.key);
  const auto decided = [&](Outcome o) {
    acks->reply().items[item] = std::move(o);
    acks->decided();
  };
  if (object == nullptr || object->generation != claim.generation)
    return decided(outcome(Code::kStale, strf("put of '%s': its grant expired, or the master "
                                              "was restarted: put it again",
                                              escape(claim.key).c_str())));
  if (object->state != ObjectState::kWriting && object->checksum != claim.checksum)
    return decided(outcome(Code::kInvalid, strf("put of '%s': published with another checksum",
                                                escape(claim.key).c_str())));
  switch (object->state) {
    case ObjectState::kComplete: return decided({});
    case ObjectState::kRecording:
      recording_[recording_id(*object)].more.push_back({acks, item});
      return;
    case ObjectState::kWriting: break;
  }
  object->checksum = claim.checksum;
  if (!still_true(*object)) {
    release(*object, {});
    return decided(outcome(Code::kStale, strf("put of '%s': removed from the disk meanwhile",
                                              escape(claim.key).c_str())));
  }
  grants_.end(*object);
  object->state = ObjectState::kRecording;
  recording_id(*object) = recording_.take();
  Recording& recording = recording_[recording_id(*object)];
  recording.open = static_cast<uint32_t>(replica_count(*object));
  recording.first = {acks, item};
  each_replica(*object, [&](const Replica& r) {
    PendingOrder about;
    about.object = object->self;
    record_of(*object, r, members_.order(*r.node, OrderKind::kRecord, {}, std::move(about)).record);
  });
}

// The object that the order's acknowledgement publishes; nullptr if it is gone.
Object* Master::recording_of(const PendingOrder& pending) {
  if (pending.object == kNoId) return nullptr;
  Object& object = table_[pending.object];
  const bool same = object.state == ObjectState::kRecording &&
                    object.generation == pending.order->record.generation;
  return same ? &object : nullptr;
}

void Master::recorded(const PendingOrder& pending, Time now) {
  Object* recording = recording_of(pending);
  if (recording == nullptr || --recording_[recording_id(*recording)].open > 0) return;
  Object& object = *recording;
  const Recording waiting = std::move(recording_[recording_id(object)]);
  recording_.give(std::exchange(recording_id(object), kNoId));
  drop_gone_replicas(object);
  Outcome answer;
  if (object.node == nullptr) {
    erase(object);
    answer = outcome(Code::kUnavailable, strf("put of '%s': its node is gone: put it again",
                                              escape(pending.order->record.key).c_str()));
  } else if (!still_true(object)) {
    release(object, removals_.of(disk_name(object.tenant, object.key())));
    answer = outcome(Code::kStale, strf("put of '%s': removed from the disk meanwhile",
                                        escape(pending.order->record.key).c_str()));
  } else {
    publish(object, now, true);
  }
  const auto tell = [&](const Recording::Waiting& w) {
    w.acks->reply().items[w.item] = answer;
    w.acks->decided();
  };
  tell(waiting.first);
  for (const auto& w : waiting.more) tell(w);
}

void Master::publish(Object& object, Time now, bool anew) {
  object.state = ObjectState::kComplete;
  object.until = Time::min();
  table_.list(object);
  object_bytes_ += object.bytes;
  ++tenants_[object.tenant].objects;
  ++totals_.puts;
  if (object.promoted) ++totals_.promoted;
  const auto size = static_cast<size_t>(
      std::lower_bound(kValueSizes.begin(), kValueSizes.end(), object.bytes) - kValueSizes.begin());
  ++totals_.values[size];
  totals_.value_bytes[size] += object.bytes;
  if (anew) newest_ = object.self;
  if (anew && (tombstones_.any_away() || unknown_nodes_away(now)))
    if (const std::string name = disk_name(object.tenant, object.key());
        may_come_back(name, now) && !tier_.objects().has(name))
      tombstones_.add(name, object.generation);
  enqueue(object);
  offload_early(object, now);
  note(EventKind::kStored, object, now);
  if (!awaited_.empty()) wake_looks(in_tenant(object.tenant, object.key()), now);
}

Result<Outcomes> Master::handle(const PutRevoke& m, Time now) {
  MC_TRY_(check_batch(m.items.size()));
  const uint16_t tenant = tenants_.find(m.tenant);
  Outcomes reply{epoch_, std::vector<Outcome>(m.items.size())};
  if (m.nonce != 0 && grants_.give_up(m.nonce, now)) room_changed_ = true;  // it may wait for space
  for (size_t i = 0; i < m.items.size(); ++i) {
    Object* object = find(tenant, m.items[i].key);
    if (m.nonce != 0) {
      if (Grants::is_of(object, m.nonce + i)) release(*object, {});
      continue;
    }
    if (object == nullptr || object->generation != m.items[i].generation) continue;
    if (object->state == ObjectState::kWriting) {
      if (object->checksum != 0) grants_.give_up(object->checksum, now);
      release(*object, {});
    } else {
      reply.items[i] = outcome(Code::kInvalid, strf("put of '%s' is published: remove it instead",
                                                    escape(object->key()).c_str()));
    }
  }
  finish(now);
  return reply;
}

}  // namespace mc::store
