// Removals of objects: from memory, and from disks.
#include "store/master/master.h"
#include "store/metadata/batch_answers.h"

namespace mc::store {

namespace {

// What a disk could not remove may return when its node does: that removal is no success. Where the
// node was lost instead, others are to remember the removal first.
DiskReplicaIndex::Gone tell_gone(Removals& removals, const Outcoming& acks, size_t item,
                                 const std::string& name) {
  return [&removals, acks, item, name](const Result<>& gone) {
    if (!gone)
      acks->reply().items[item] = outcome(
          gone.error().code,
          strf("key '%s': %s", escape(parts_of(name).second).c_str(), gone.error().what.c_str()));
    if (!removals.wait(name, [acks] { acks->decided(); })) acks->decided();
  };
}

}  // namespace

void Master::handle(const Remove& m, Time now, Done<Outcomes> done) {
  if (auto sane = check_batch(m.keys.size()); !sane) return done(fail(sane.error()));
  if (m.keys.empty()) return done(Outcomes{epoch_, {}});
  const uint16_t tenant = tenants_.find(m.tenant);
  const auto acks = std::make_shared<AckTracker<Outcomes>>(
      Outcomes{epoch_, std::vector<Outcome>(m.keys.size())}, m.keys.size(), std::move(done));
  for (size_t i = 0; i < m.keys.size(); ++i) {
    Outcome& answer = acks->reply().items[i];
    if (auto key = check_object_key(m.keys[i]); !key) {
      answer = Outcome::of(key);
      acks->decided();
    } else if (Object* object = find_complete(tenant, m.keys[i]); object == nullptr) {
      remove_unknown(m, acks, i, now);
    } else if (answer = removable(*object, m.force, now); answer.ok()) {
      remove(*object, acks, i, now);
    } else {
      acks->decided();
    }
  }
  finish(now);
}

// What no memory has: a disk may have it, or an earlier call may have removed it just now.
void Master::remove_unknown(const Remove& m, const Outcoming& acks, size_t item, Time now) {
  const ObjectKey& key = m.keys[item];
  const std::string name = in_space(m.tenant, key);
  const auto part = [acks] { acks->decided(); };
  const auto disk = tier_.objects().find(name);
  if (tier_.forget(name, tell_gone(removals_, acks, item, name))) {
    if (disk && note_disk(name, *disk, now, "removed")) ++totals_.removed;
    add_tombstone(name, now);
    return;
  }
  if (removals_.wait(name, part)) return add_tombstone(name, now);  // it was put since, maybe
  const auto whole = sure(1, now);
  acks->reply().items[item] =
      whole ? outcome(Code::kNotFound, strf("no key '%s'", escape(key).c_str()))
            : Outcome::of(whole);
  if (whole) add_tombstone(name, now);
  if (!removals_.wait(name, part)) part();
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

// `item`: of `acks`, which may be null.
void Master::remove(Object& object, const Outcoming& acks, size_t item, Time now) {
  ++totals_.removed;
  const std::string name = disk_name(object.tenant, object.key());
  tombstones_.add(name, next_generation());
  note(EventKind::kRemoved, object, now, "removed");
  auto told = acks ? tell_gone(removals_, acks, item, name) : nullptr;
  if (tier_.forget(name, std::move(told)) && acks) acks->expect(1);
  const RemovalRef removal = removals_.of(name);
  if (acks) removal->wait([acks] { acks->decided(); });
  release(object, removal);
}

}  // namespace mc::store
