// Removals of objects: from memory, and from disks.
#include "store/master/master.h"
#include "store/metadata/batch_answers.h"

namespace mc::store {

void Master::handle(const Remove& m, Time now, Done<Outcomes> done) {
  if (auto sane = check_batch(m.keys.size()); !sane) return done(fail(sane.error()));
  if (auto sane = Tenants::check(m.tenant); !sane) return done(fail(sane.error()));
  if (m.keys.empty()) return done(Outcomes{epoch_, {}});
  const uint16_t tenant = tenants_.find(m.tenant);
  const auto acks = std::make_shared<AckTracker<Outcomes>>(
      Outcomes{epoch_, std::vector<Outcome>(m.keys.size())}, m.keys.size(), std::move(done));
  const auto part = [acks] { acks->decided(); };
  for (size_t i = 0; i < m.keys.size(); ++i) {
    Outcome& answer = acks->reply().items[i];
    const std::string name = in_space(m.tenant, m.keys[i]);
    // What a disk could not remove may return when its node does: that removal is no success.
    const auto gone = [acks, i, key = m.keys[i]](const Result<>& of_disks) {
      if (!of_disks)
        acks->reply().items[i] =
            outcome(of_disks.error().code,
                    strf("key '%s': %s", escape(key).c_str(), of_disks.error().what.c_str()));
    };
    if (auto key = check_object_key(m.keys[i]); !key) {
      answer = Outcome::of(key);
      part();
      continue;
    }
    Object* object = find(tenant, m.keys[i]);
    if (object != nullptr && object->state == ObjectState::kComplete) {
      answer = removable(*object, m.force, now);
      if (answer.ok())
        remove(*object, gone, part, now);
      else
        part();
      continue;
    }
    // No memory has it. A disk may, or a call before may have removed it just now.
    const auto disk = tier_.objects().find(name);
    const bool on_disks = forget_on_disks(name, gone);
    if (on_disks && disk && note_disk(name, *disk, now, "removed")) ++totals_.removed;
    const bool under_way = removals_.wait(name, part);
    const auto whole = on_disks || under_way ? Result<>{} : sure(1, now);
    if (whole) add_tombstone(name, object, now);
    if (under_way) continue;
    answer = whole ? outcome(Code::kNotFound, strf("no key '%s'", escape(m.keys[i]).c_str()))
                   : Outcome::of(whole);
    if (!removals_.wait(name, part)) part();
  }
  finish(now);
}

Outcome Master::removable(const Object& object, bool force, Time now) const {
  if (force) return {};
  if (leases_.held(object, now))
    return outcome(Code::kBusy, strf("key '%s' is leased for %.0f ms more: retry, or force",
                                     escape(object.key()).c_str(), to_ms(object.until - now)));
  if (object.pin == Pin::kHard)
    return outcome(Code::kBusy,
                   strf("key '%s' is pinned: unpin it, or force", escape(object.key()).c_str()));
  return {};
}

void Master::remove(Object& object, const DiskReplicaIndex::Gone& gone, Removal::Ended ended,
                    Time now) {
  ++totals_.removed;
  const std::string name = disk_name(object.tenant, object.key());
  tombstones_.add(name, next_generation());
  note(EventKind::kRemoved, object, now, "removed");
  (void)forget_on_disks(name, gone);
  const RemovalRef removal = removals_.of(name);
  if (ended) removal->wait(std::move(ended));
  release(object, removal);
}

}  // namespace mc::store
