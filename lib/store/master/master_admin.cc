// Pins, removal by prefix, and explanations.
#include <algorithm>

#include "store/master/master.h"

namespace mc::store {
namespace {
constexpr size_t kRemoveMax = 1000;  // keys of one call, because other calls wait meanwhile
constexpr size_t kEventsMax = 32;
constexpr uint64_t kPinMaxMs = 100ull * 365 * 24 * 3600 * 1000;
}  // namespace

Result<Outcomes> Master::handle(const PinKeys& m, Time now) {
  if (m.keys.size() > kBatchMax || m.pin > static_cast<uint8_t>(Pin::kHard))
    return fail(Code::kInvalid, "pin %u of %zu keys: want 0, 1 or 2, of at most %zu",
                unsigned{m.pin}, m.keys.size(), kBatchMax);
  const uint16_t tenant = tenants_.find(m.tenant);
  Outcomes reply{epoch_, std::vector<Outcome>(m.keys.size())};
  for (size_t i = 0; i < m.keys.size(); ++i) {
    Object* object = find_complete(tenant, m.keys[i]);
    if (object == nullptr) {
      reply.items[i] = {static_cast<uint8_t>(Code::kNotFound),
                        strf("no key '%s'", escape(m.keys[i]).c_str())};
      continue;
    }
    const auto pin = static_cast<Pin>(m.pin);
    const Group* const group = group_of(*object);
    if (pin == Pin::kHard && !Tenants::stays(object->cls, object->pin) &&
        (group == nullptr || group->staying == 0)) {
      const uint64_t own = replica_count(*object) * object->node->space.rounded(object->bytes);
      const auto may =
          tenants_.may_pin(tenant, group == nullptr ? own : group->bytes, members_.capacity());
      if (!may) {
        reply.items[i] = rebuild_.over(now)
                             ? Outcome::of(may)
                             : Outcome{static_cast<uint8_t>(Code::kUnavailable), rebuild_.why(now)};
        continue;
      }
    }
    Time until = Time::max();
    if (object->cls == ObjectClass::kContext && object->extras)
      until = extras_.at(object->self).keep_until;
    else if (m.ttl_ms > 0 && pin != Pin::kNone)
      until = now + std::chrono::milliseconds(std::min(m.ttl_ms, kPinMaxMs));
    dequeue(*object);
    // It stays when the disk has it.
    evicting_.end(disk_name(tenant, m.keys[i]));
    set_config(*object, object->cls, pin, until, {});
    enqueue(*object);
    // The nodes record it too, for the next master.
    each_replica(*object, [&](const Replica& r) {
      record_of(*object, r, members_.order(*r.node, OrderKind::kRecord, {}, {}).record);
    });
  }
  finish(now);
  return reply;
}

void Master::handle(const RemovePrefix& m, Time now, Done<RemovePrefixed> done) {
  if (auto sane = Tenants::check(m.tenant); !sane) return done(fail(sane.error()));
  const auto acks =
      std::make_shared<AckTracker<RemovePrefixed>>(RemovePrefixed{epoch_}, 1, std::move(done));
  RemovePrefixed& reply = acks->reply();
  const auto gone = [acks](const Result<>& of_disks) {
    if (of_disks) return;
    --acks->reply().removed;
    if (acks->reply().refused++ == 0) acks->reply().why = of_disks.error().what;
  };
  const std::string space = in_space(m.tenant, "");
  const uint16_t tenant = tenants_.find(m.tenant);
  const bool from_prefix = m.after < m.prefix || m.after.empty();
  if (!table_.sort(4 * kRemoveMax)) {  // the order is incomplete: the caller continues from there
    reply.last = m.after;
    reply.more = true;
    finish(now);
    return acks->decided();
  }
  if (m.after.empty() && (tombstones_.any_away() || unknown_nodes_away(now)) &&
      tenant != Tenants::kNone)
    tombstones_.add_prefix(space, m.prefix, next_generation());
  const Object* at = table_.after(tenant, from_prefix ? m.prefix : m.after, from_prefix);
  for (size_t n = 0; at != nullptr && at->key().starts_with(m.prefix); ++n) {
    if (n == kRemoveMax) {
      reply.more = true;
      break;
    }
    Object& object = table_[at->self];
    reply.last = object.key();
    if (const Outcome may = removable(object, m.force, now); may.ok()) {
      remove(object, gone, nullptr, now);
      ++reply.removed;
    } else if (reply.refused++ == 0) {
      reply.why = may.what;
    }
    at = table_.after(tenant, reply.last, false);
  }
  if (!reply.more && tier_.any()) remove_disks(reply, m, tenant, gone, now);
  // Also for those that a call before removed, whose answer was lost.
  acks->expect(removals_.wait_prefix(space, m.prefix, [acks] { acks->decided(); }));
  finish(now);
  acks->decided();
}

Result<Explained> Master::handle(const Explain& m, Time now) {
  Explained reply;
  reply.epoch = epoch_;
  const uint16_t tenant = tenants_.find(m.tenant);
  const Object* object = find(tenant, m.key);
  const bool disk = on_disk(tenant, m.key);
  if (disk) reply.facts.push_back("a disk has it");
  reply.state = object == nullptr && disk                 ? "stored"
                : object == nullptr                       ? "not stored"
                : object->state == ObjectState::kComplete ? "stored"
                                                          : "being written";
  if (const std::string doubt = rebuild_.why(now); !doubt.empty() && object == nullptr)
    reply.facts.push_back(doubt);
  if (object != nullptr) {
    constexpr const char* kClasses[] = {"normal", "ephemeral", "context"};
    constexpr const char* kPins[] = {"not pinned", "soft pinned", "hard pinned"};
    reply.facts.push_back(strf("%s, class %s, %s", rounded_bytes_text(object->bytes).c_str(),
                               kClasses[static_cast<size_t>(object->cls)],
                               kPins[static_cast<size_t>(object->pin)]));
    if (leases_.held(*object, now))
      reply.facts.push_back(strf("leased for %.0f ms more", to_ms(object->until - now)));
    each_replica(*object, [&](const Replica& r) {
      size_t pieces = 0;
      each_piece(r, object->bytes, [&](const Extent&) { ++pieces; });
      reply.facts.push_back(strf("replica on node %s, in %zu piece(s)%s%s",
                                 escape(r.node->ref.name).c_str(), pieces,
                                 members_.healthy(*r.node, now) ? "" : ", which is suspect",
                                 r.node->draining ? ", which drains" : ""));
    });
    if (const auto group = together_with(*object); !group.empty())
      reply.facts.push_back(strf("one of %zu objects of its group", group.size()));
    if (object->state == ObjectState::kComplete && !object->queued)
      reply.facts.push_back("not to be evicted now");
  }
  reply.events =
      events_.about(tenant == Tenants::kNone ? m.tenant : tenants_[tenant].name, m.key, kEventsMax);
  return reply;
}

}  // namespace mc::store
