// Removals of objects: from memory, and from disks.
#include "store/master/master.h"
#include "store/metadata/batch_answers.h"

namespace mc::store {
namespace {

// What a disk could not remove may return when its node does: that removal is no success.
DiskReplicaIndex::Gone tell_gone(const Outcoming& acks, size_t item, std::string_view key) {
  return [acks, item, key = std::string(key)](const Result<>& gone) {
    if (!gone)
      acks->reply().items[item] = outcome(
          gone.error().code, strf("key '%s': %s", escape(key).c_str(), gone.error().what.c_str()));
    acks->decided();
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
    Object* object = find_complete(tenant, m.keys[i]);
    const std::string name = disk_name(tenant, m.keys[i]);
    const auto disk = object == nullptr ? tier_.objects().find(name) : std::nullopt;
    if (auto key = check_object_key(m.keys[i]); !key) {
      answer = Outcome::of(key);
    } else if (object == nullptr && tier_.forget(name, tell_gone(acks, i, m.keys[i]))) {
      if (disk && note_disk(name, *disk, now, "removed")) ++totals_.removed;
      add_tombstone(name, now);
      continue;
    } else if (object == nullptr) {
      const auto whole = sure(1, now);
      answer = whole ? outcome(Code::kNotFound, strf("no key '%s'", escape(m.keys[i]).c_str()))
                     : Outcome::of(whole);
      if (whole) add_tombstone(in_space(m.tenant, m.keys[i]), now);
    } else if (answer = removable(*object, m.force, now); answer.ok()) {
      remove(*object, acks, i, now);
      continue;
    }
    acks->decided();
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

// `item`: of `acks`, which may be null.
void Master::remove(Object& object, const Outcoming& acks, size_t item, Time now) {
  ++totals_.removed;
  tombstones_.add(disk_name(object.tenant, object.key()), next_generation());
  note(EventKind::kRemoved, object, now, "removed");
  auto told = acks ? tell_gone(acks, item, object.key()) : nullptr;
  if (tier_.forget(disk_name(object.tenant, object.key()), std::move(told)) && acks)
    acks->expect(1);
  release(object, acks, true);
}

}  // namespace mc::store
