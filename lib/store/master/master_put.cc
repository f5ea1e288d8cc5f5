// Puts: reservations, and puts that wait for space.
#include <algorithm>
#include <array>
#include <numeric>

#include "store/master/master.h"
#include "store/metadata/batch_answers.h"

namespace mc::store {
namespace {

constexpr Duration kPutWaitMax = std::chrono::seconds(60);
constexpr Duration kPutGrace = std::chrono::milliseconds(500);  // clients wait for a second more
constexpr size_t kPutsParkedMax = 1 << 16;

Result<> check_put(const PutStart& m) {
  MC_TRY_(check_batch(m.items.size()));
  if (m.cls > static_cast<uint8_t>(ObjectClass::kContext))
    return fail(Code::kInvalid, "put of class %u: want 0, 1 or 2", unsigned{m.cls});
  if (m.pin > static_cast<uint8_t>(Pin::kHard))
    return fail(Code::kInvalid, "put with pin %u: want 0, 1 or 2", unsigned{m.pin});
  if (m.group.size() > kGroupBytesMax)
    return fail(Code::kInvalid, "put in a group of %zu bytes: %zu at most", m.group.size(),
                kGroupBytesMax);
  return {};
}

uint64_t in_pages(uint64_t bytes) {
  return (bytes / kPage + (bytes % kPage != 0 || bytes == 0 ? 1 : 0)) * kPage;
}

Duration ttl_of(uint64_t ms) {
  constexpr uint64_t kYear = 365ull * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::min(ms, 100 * kYear));
}

// Of the put of an item; 0: none. Another item of its batch may have the same key, but not the same
// nonce.
uint64_t item_nonce(const PutStart& m, size_t i) { return m.nonce == 0 ? 0 : m.nonce + i; }

// Whether the object is being written by this very put: the answer to an earlier try was lost.
bool asked_before(const Object* object, const PutStart& m, size_t i) {
  return Grants::is_of(object, item_nonce(m, i)) && object->bytes == m.items[i].bytes &&
         object->promoted == m.promote;
}

uint64_t bytes_of(const PutStart& m) {
  uint64_t bytes = sizeof m;
  for (const NodeId& node : m.avoid) bytes += sizeof node + node.size();
  for (const PutWant& want : m.items)
    bytes += sizeof want + sizeof(PutGrant) + sizeof(size_t) + want.key.size();
  return bytes;
}

// Whether what an earlier grant of this put may have stored was removed since. Then it must not
// come back.
bool was_deleted(const Tombstones& tombstones, const std::string& disk_name, const PutWant& want) {
  return want.tried && tombstones.is_deleted(disk_name, want.tried);
}

}  // namespace

Outcome Master::no_room(uint64_t bytes, Time now) const {
  if (!rebuild_.over(now)) return outcome(Code::kUnavailable, rebuild_.why(now));
  if (members_.capacity() == 0)
    return outcome(Code::kUnavailable, members_.all().empty()
                                           ? "no node is mounted: start mc-store serve"
                                           : "no mounted node takes values, for those that are "
                                             "there drain: start mc-store serve elsewhere");
  if (bytes > members_.largest())
    return outcome(
        Code::kNoSpace,
        strf("value of %s is larger than the largest segment, %s, of a pool of %s",
             rounded_bytes_text(bytes).c_str(), rounded_bytes_text(members_.largest()).c_str(),
             rounded_bytes_text(members_.capacity()).c_str()));
  return outcome(
      Code::kNoSpace,
      strf("no room for %s in a pool of %s, %s used: %s; retry, or add nodes",
           rounded_bytes_text(bytes).c_str(), rounded_bytes_text(members_.capacity()).c_str(),
           rounded_bytes_text(members_.used()).c_str(), in_the_way(now).c_str()));
}

// What keeps a full pool from being evicted.
std::string Master::in_the_way(Time now) const {
  std::string out;
  const auto say = [&](const std::string& what) { out += (out.empty() ? "" : ", ") + what; };
  if (evicting_.bytes > 0)
    say(strf("%s waits to be written to disks%s", rounded_bytes_text(evicting_.bytes).c_str(),
             options_.on_slow_offload == "wait" ? " (on-slow-offload wait)" : ""));
  for (const auto& [name, node] : members_.all())
    if (node->tier && options_.on_slow_offload == "wait")
      return "node '" + escape(name) +
             "' has yet to say what its disk holds (on-slow-offload wait)";
  if (const uint64_t freeing = members_.releasing(now); freeing > 0)
    say(strf("nodes have yet to give back %s", rounded_bytes_text(freeing).c_str()));
  if (leases_.size() > 0) say(strf("%zu objects are leased", leases_.size()));
  if (const size_t n = table_.size() - table_.listed(); n > 0)
    say(strf("%zu objects are being written", n));
  return out.empty() ? "what is left is pinned, or no node has so much in few enough pieces" : out;
}

// Whether so many copies keep within the shares of what eviction cannot free.
Result<> Master::may_stay(const PutStart& m, uint16_t tenant, uint64_t bytes, size_t copies) const {
  const bool stays = Tenants::stays(static_cast<ObjectClass>(m.cls), static_cast<Pin>(m.pin));
  if ((!stays && m.group.empty()) || members_.capacity() == 0) return {};
  const Group* const group = m.group.empty() ? nullptr : tenants_.find_group(tenant, m.group);
  return tenants_.may_add(tenant, group, stays, copies * in_pages(bytes), members_.capacity());
}

// Whether a put may be granted, space aside. Discards what a writer that gave up left.
Outcome Master::may_begin(const PutStart& m, const PutWant& want, uint16_t tenant, Time now) {
  if (auto key = check_object_key(want.key); !key) return Outcome::of(key);
  const auto refuse = [&](Code code, const char* why) {
    return outcome(code, strf("key '%s' %s", escape(want.key).c_str(), why));
  };
  if (was_deleted(tombstones_, disk_name(tenant, want.key), want))
    return refuse(Code::kExists, "was stored, and removed or replaced since");
  if (Object* object = find(tenant, want.key)) {
    if (object->state == ObjectState::kComplete) {
      if (object->queued) tenants_.queue_of(*object)->use(*object);
      return refuse(Code::kExists, "is stored already");
    }
    if (object->state == ObjectState::kRecording || !grants_.over(*object, now))
      return refuse(Code::kBusy, "is being written by another");
    abandon(*object, now);
  } else if (m.promote != on_disk(tenant, want.key)) {
    return m.promote ? refuse(Code::kNotFound, "is on no disk any more")
                     : refuse(Code::kExists, "is stored already");
  }
  if (auto may = may_stay(m, tenant, want.bytes, 1); !may) {
    ++totals_.put_no_space;
    return rebuild_.over(now) ? Outcome::of(may) : outcome(Code::kUnavailable, rebuild_.why(now));
  }
  if (m.cls != static_cast<uint8_t>(ObjectClass::kEphemeral)) return {};
  // Ephemeral objects never evict others.
  const double room = options_.high_watermark * static_cast<double>(members_.capacity());
  const double filled = static_cast<double>(members_.used()) + static_cast<double>(want.bytes);
  if (options_.ephemeral == "if-free" && filled <= room) return {};
  ++totals_.not_admitted;
  return refuse(Code::kDenied,
                strf("is not admitted: ephemeral (%s)", options_.ephemeral.c_str()).c_str());
}

Master::Tried Master::start_put(const PutStart& m, ParkedPut& put, uint16_t tenant, size_t i,
                                bool last_try, Time now) {
  const PutWant& want = m.items[i];
  PutGrant& answer = put.reply.items[i];
  const uint32_t replicas = std::clamp(m.replicas, 1u, kReplicasMax);
  Object* const own = m.nonce == 0 ? nullptr : find(tenant, want.key);
  if (asked_before(own, m, i)) {
    if (was_deleted(tombstones_, disk_name(tenant, want.key), want)) {
      abandon(*own, now);  // a late copy of this message comes while its client writes there
    } else if (replica_count(*own) <= replicas && !grants_.over(*own, now)) {
      grants_.renew(*own, now);
      tell_grant(*own, put, answer);
      return Tried::kAnswered;
    }
  }
  answer.outcome = may_begin(m, want, tenant, now);
  if (!answer.outcome.ok()) return Tried::kAnswered;
  const bool hopeless =
      rebuild_.over(now) && members_.capacity() > 0 && want.bytes > members_.largest();
  if (!hopeless && !within_quota(tenant, want.bytes, put.late, now)) {
    if (!last_try) return Tried::kOverQuota;
    ++totals_.put_no_space;
    Tenant& t = tenants_[tenant];
    ++t.refused;
    answer.outcome = outcome(Code::kNoSpace,
                             strf("tenant '%s' is at its quota: %s of %s used, the rest is leased",
                                  escape(t.name).c_str(), rounded_bytes_text(t.used).c_str(),
                                  rounded_bytes_text(t.quota).c_str()));
    return Tried::kAnswered;
  }
  std::array<Replica, kReplicasMax> places;
  std::span<Replica> at;
  const PlacementRequest request{m.prefer, m.host, m.prefer_local, m.avoid};
  while (!hopeless && at.size() < replicas) {
    const size_t copies = at.size() + 1;
    if (copies > 1 && (!may_stay(m, tenant, want.bytes, copies) ||
                       !within_quota(tenant, want.bytes * copies, put.late, now)))
      break;
    auto replica = members_.place(want.bytes, at, request, now);
    if (!replica) break;
    places[at.size()] = *replica;
    at = {places.data(), at.size() + 1};
  }
  if (at.empty()) {
    if (!last_try && !hopeless) return Tried::kNoRoom;
    ++totals_.put_no_space;
    if (m.promote) ++totals_.promotions_no_room;
    answer.outcome = no_room(want.bytes, now);
    return Tried::kAnswered;
  }
  ++placed_;
  placed_bytes_ += want.bytes * at.size();
  if (at.size() < replicas) ++totals_.fewer_replicas;
  if (m.promote) ++totals_.promotions;
  Object& object = table_.insert(tenant, want.key);
  object.bytes = want.bytes;
  object.promoted = m.promote;
  grants_.begin(object, item_nonce(m, i), now);
  const Generation generation = next_generation();
  for (Replica& r : at) {
    r.generation = generation;
    add_replica(object, r);
  }
  if (m.cls != 0 || m.pin != 0 || !m.group.empty())
    set_config(object, static_cast<ObjectClass>(m.cls), static_cast<Pin>(m.pin),
               m.ttl_ms == 0 ? Time::max() : now + ttl_of(m.ttl_ms), m.group);
  tell_grant(object, put, answer);
  return Tried::kAnswered;
}

void Master::tell_grant(const Object& object, ParkedPut& put, PutGrant& answer) const {
  answer.outcome = {};
  answer.generation = object.generation;
  answer.places.reserve(replica_count(object));
  each_replica(object, [&](const Replica& r) {
    answer.places.push_back(place_of(object, r, put.reply.nodes, put.named));
  });
}

// Evicts the tenant's own objects if its quota requires it; for a late put without the disks.
bool Master::within_quota(uint16_t tenant, uint64_t bytes, bool late, Time now) {
  Tenant& t = tenants_[tenant];
  if (t.quota == 0) return true;
  const uint64_t span = in_pages(bytes);
  if (span > t.quota) return false;
  Need need{0, "evicted: its tenant is at its quota"};
  need.at_once = late;
  const auto lacks = [&] {
    const uint64_t allowed = t.quota + (late ? 0 : t.offloading);
    need.bytes = t.used + span - std::min(t.used + span, allowed);
    return need.bytes > 0;
  };
  for (size_t q = 0; q < t.queues.size() && lacks(); ++q) evict_from(t, q, need, now);
  if (late && lacks()) drop_offloads(&t, need, now);
  return t.used + span <= t.quota;
}

void Master::handle(const PutStart& m, Time now, Done<PutStarted> done) {
  if (auto sane = check_put(m); !sane) return done(fail(sane.error()));
  const auto tenant = tenants_.get(m.tenant);
  if (!tenant) return done(fail(tenant.error()));
  ParkedPut put{{}, std::move(granted_), {}, {}, 0, 0, false, false, std::move(done)};
  put.reply.epoch = epoch_;
  put.reply.rebuilding = !rebuild_.over(now);
  put.reply.nodes.clear();
  put.reply.items.resize(m.items.size());
  for (PutGrant& item : put.reply.items) {
    item.generation = {};
    item.places.clear();
  }
  put.kept = bytes_of(m);
  const bool last_try =
      parked_.puts.size() >= kPutsParkedMax || parked_.kept + put.kept > Parking::kKeptMax;
  table_.warm(
      *tenant, m.items, [](const PutWant& want) { return std::string_view(want.key); },
      [](const Object&) {});
  try_items(m, put, *tenant, last_try, now);
  if (put.open.empty()) {
    Result<PutStarted> reply(std::move(put.reply));
    put.done(reply);
    if (reply->items.size() <= kOrdersMax) granted_ = std::move(*reply);
  } else {
    put.message = m;
    const Duration asked = std::chrono::milliseconds(m.wait_ms);
    const Duration wait = std::min(m.wait_ms == 0 ? options_.put_wait : asked, kPutWaitMax);
    ++totals_.puts_waited;
    ParkedPut& parked = parked_.puts.emplace(now + wait, std::move(put))->second;
    parked_.count(parked, true);
    if (tier_.any() && options_.on_slow_offload == "drop")
      parked.half = parked_.halves.emplace(now + wait / 2, &parked);
  }
  finish(now);
}

void Master::Parking::count(const ParkedPut& put, bool in) {
  const auto add = [&](uint64_t& sum, uint64_t bytes) { sum = in ? sum + bytes : sum - bytes; };
  add(demand, put.demand);
  if (put.late) add(late_demand, put.demand);
  add(kept, put.kept);
}

// Tries the open items; the first time, all of them.
void Master::try_items(const PutStart& m, ParkedPut& put, uint16_t tenant, bool last_try,
                       Time now) {
  if (put.open.empty()) {
    put.open.resize(m.items.size());
    std::iota(put.open.begin(), put.open.end(), size_t{0});
  }
  put.demand = 0;
  const bool given_up = grants_.given_up(m.nonce);
  std::erase_if(put.open, [&](size_t i) {
    if (given_up || grants_.given_up(item_nonce(m, i))) {
      put.reply.items[i].outcome = outcome(Code::kStale, "its client gave it up: put it again");
      return true;
    }
    const Tried tried = start_put(m, put, tenant, i, last_try, now);
    // No mounted node could hold the value: evict nothing, and wait for further nodes.
    if (tried == Tried::kNoRoom && m.items[i].bytes <= members_.largest())
      put.demand += m.items[i].bytes + kPage;
    return tried == Tried::kAnswered;
  });
}

void Master::retry_puts(Time now) {
  room_changed_ = false;
  for (auto it = parked_.puts.begin(); it != parked_.puts.end();) {
    ParkedPut& put = it->second;
    parked_.count(put, false);
    try_items(put.message, put, tenants_.find(put.message.tenant), false, now);
    if (put.open.empty()) put.kept = 0;
    parked_.count(put, true);
    if (put.open.empty()) {
      if (put.half) parked_.halves.erase(*put.half);
      put.done(put.reply);
      it = parked_.puts.erase(it);
    } else {
      ++it;
    }
  }
}

// A put is not refused while its room is coming: once, it waits for that a little longer.
void Master::expire_parked(Time now) {
  bool coming = members_.releasing(now) > 0;
  while (!parked_.halves.empty() && parked_.halves.begin()->first <= now) {
    ParkedPut& put = *parked_.halves.begin()->second;
    parked_.halves.erase(std::exchange(put.half, {}).value());
    put.late = true;
    parked_.late_demand += put.demand;
    room_changed_ = true;  // one that is over its quota may go on
    coming = true;
  }
  while (!parked_.puts.empty() && parked_.puts.begin()->first <= now) {
    auto first = parked_.puts.extract(parked_.puts.begin());
    if (coming && first.mapped().demand > 0 && !std::exchange(first.mapped().extended, true)) {
      first.key() = now + kPutGrace;
      parked_.puts.insert(std::move(first));
      continue;
    }
    parked_.count(first.mapped(), false);
    ParkedPut put = std::move(first.mapped());
    try_items(put.message, put, tenants_.find(put.message.tenant), true, now);
    put.done(put.reply);
  }
  while (!parked_looks_.empty() && parked_looks_.begin()->first <= now)
    answer_look(parked_looks_.begin()->second, now);
}

}  // namespace mc::store
