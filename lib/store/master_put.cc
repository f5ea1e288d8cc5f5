// Writing and removing: grants, publication, rolling back, and waiting for room.
#include <algorithm>

#include "store/master.h"

namespace mc::store {
namespace {

constexpr Duration kWaitMax = std::chrono::seconds(60);
constexpr size_t kParkedMax = 1 << 16;

Outcome outcome(Code code, std::string what) {
  return {static_cast<uint8_t>(code), std::move(what)};
}

uint32_t index_of(std::vector<NodeRef>& nodes, const NodeRef& node) {
  for (size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].generation == node.generation && nodes[i].name == node.name)
      return static_cast<uint32_t>(i);
  nodes.push_back(node);
  return static_cast<uint32_t>(nodes.size() - 1);
}

Result<> check_batch(size_t items) {
  if (items > kBatchMax)
    return fail(Code::kInvalid, "%zu items in one call: %zu at most", items, kBatchMax);
  return {};
}

}  // namespace

Outcome Master::no_room(uint64_t bytes) const {
  if (members_.capacity() == 0)
    return outcome(Code::kUnavailable, "no node is mounted: start mc-store serve");
  if (bytes > members_.largest())
    return outcome(Code::kNoSpace,
                   strf("value of %s is larger than the largest segment, %s, of a pool of %s",
                        human_bytes(bytes).c_str(), human_bytes(members_.largest()).c_str(),
                        human_bytes(members_.capacity()).c_str()));
  return outcome(Code::kNoSpace,
                 strf("no room for %s in a pool of %s, %s used: the rest is leased or being "
                      "written; retry, or add nodes",
                      human_bytes(bytes).c_str(), human_bytes(members_.capacity()).c_str(),
                      human_bytes(members_.used()).c_str()));
}

bool Master::start_put(const PutStart& m, size_t i, PutStarted& reply, bool last_try, Time now) {
  const PutWant& want = m.items[i];
  PutGrant& grant = reply.items[i];
  if (auto key = check_object_key(want.key); !key) {
    grant.outcome = Outcome::of(key);
    return true;
  }
  if (Object* object = find(want.key)) {
    if (object->state == ObjectState::kComplete) {
      if (object->in_lru) lru_.touch(*object);
      grant.outcome =
          outcome(Code::kExists, strf("key '%s' is stored already", shown(want.key).c_str()));
      return true;
    }
    if (object->state == ObjectState::kRecording || now - object->started < options_.put_discard) {
      grant.outcome = outcome(
          Code::kBusy, strf("key '%s' is being written by another", shown(want.key).c_str()));
      return true;
    }
    abandon(*object, now);
  }
  const uint32_t replicas = std::clamp(m.replicas, 1u, kReplicasMax);
  std::vector<Replica> at;
  while (at.size() < replicas) {
    const auto replica = members_.place(want.bytes, at, m.prefer, now);
    if (!replica) break;
    at.push_back(*replica);
  }
  if (at.empty()) {
    const bool hopeless = members_.capacity() > 0 && want.bytes > members_.largest();
    if (!last_try && !hopeless) return false;
    ++totals_.put_no_space;
    grant.outcome = no_room(want.bytes);
    return true;
  }
  filled_ = true;
  Object& object = insert(want.key, want.bytes, next_generation(), now);
  object.replicas = std::move(at);
  grant.generation = object.generation;
  for (const Replica& r : object.replicas) {
    r.node->holds[r.offset] = &object;
    const uint64_t offset = r.node->layout.data + r.offset;
    grant.places.push_back(
        {index_of(reply.nodes, r.node->ref), offset, r.node->layout.guard_of(offset)});
  }
  writing_.push_back({now + options_.put_discard, object.key, object.generation});
  return true;
}

void Master::handle(const PutStart& m, Time now, Done<PutStarted> done) {
  if (auto sane = check_batch(m.items.size()); !sane) return done(fail(sane.error()));
  ParkedPut put{m, {}, {}, now, std::move(done)};
  put.reply.epoch = epoch_;
  put.reply.items.resize(m.items.size());
  const bool last_try = parked_puts_.size() >= kParkedMax;
  for (size_t i = 0; i < m.items.size(); ++i)
    if (!start_put(m, i, put.reply, last_try, now)) put.open.push_back(i);
  if (put.open.empty()) {
    put.done(put.reply);
  } else {
    const Duration wait = std::chrono::milliseconds(m.wait_ms);
    put.deadline = now + std::min(m.wait_ms == 0 ? options_.put_wait : wait, kWaitMax);
    parked_puts_.push_back(std::move(put));
  }
  finish(now);
}

void Master::retry_puts(Time now) {
  room_changed_ = false;
  for (auto put = parked_puts_.begin(); put != parked_puts_.end();) {
    std::erase_if(put->open,
                  [&](size_t i) { return start_put(put->message, i, put->reply, false, now); });
    if (put->open.empty()) {
      put->done(put->reply);
      put = parked_puts_.erase(put);
    } else {
      ++put;
    }
  }
}

void Master::expire_parked(Time now) {
  for (auto put = parked_puts_.begin(); put != parked_puts_.end();) {
    if (put->deadline > now) {
      ++put;
      continue;
    }
    for (const size_t i : put->open) start_put(put->message, i, put->reply, true, now);
    put->done(put->reply);
    put = parked_puts_.erase(put);
  }
  while (!parked_looks_.empty() && parked_looks_.begin()->first <= now)
    answer_look(parked_looks_.begin()->second, now);
}

void Master::handle(const PutEnd& m, Time now, Done<Outcomes> done) {
  if (auto sane = check_batch(m.items.size()); !sane) return done(fail(sane.error()));
  if (m.items.empty()) return done(Outcomes{epoch_, {}});
  auto gather = std::make_shared<Gather<Outcomes>>(
      Outcomes{epoch_, std::vector<Outcome>(m.items.size())}, m.items.size(), std::move(done));
  for (size_t i = 0; i < m.items.size(); ++i)
    end_put(m.items[i], now, [gather, i](Outcome o) {
      gather->reply().items[i] = std::move(o);
      gather->decided();
    });
  finish(now);
}

void Master::end_put(const PutClaim& claim, Time, const std::function<void(Outcome)>& decided) {
  Object* object = find(claim.key);
  if (object == nullptr || object->generation != claim.generation)
    return decided(outcome(Code::kStale, strf("put of '%s': its grant expired, or the master "
                                              "was restarted: put it again",
                                              shown(claim.key).c_str())));
  if (object->state != ObjectState::kWriting && object->checksum != claim.checksum)
    return decided(outcome(Code::kInvalid, strf("put of '%s': published with another checksum",
                                                shown(claim.key).c_str())));
  switch (object->state) {
    case ObjectState::kComplete: return decided({});
    case ObjectState::kRecording: object->waiting.push_back(decided); return;
    case ObjectState::kWriting: break;
  }
  object->checksum = claim.checksum;
  object->state = ObjectState::kRecording;
  object->recording = static_cast<uint32_t>(object->replicas.size());
  object->waiting.push_back(decided);
  for (const Replica& r : object->replicas)
    members_.order(*r.node, OrderKind::kRecord,
                   {object->key, r.offset, object->bytes, object->checksum, object->generation}, {},
                   [this, key = object->key, generation = object->generation](bool, Time when) {
                     recorded(key, generation, when);
                   });
}

void Master::recorded(const ObjectKey& key, Generation generation, Time now) {
  Object* object = find(key);
  if (object == nullptr || object->generation != generation || --object->recording > 0) return;
  auto waiting = std::move(object->waiting);
  if (object->replicas.empty()) {
    take(*object);
    for (const auto& decided : waiting)
      decided(outcome(Code::kUnavailable,
                      strf("put of '%s': its node is gone: put it again", shown(key).c_str())));
    return;
  }
  object->state = ObjectState::kComplete;
  publish(*object);
  for (const auto& decided : waiting) decided({});
  wake_looks(key, now);
}

void Master::publish(Object& object) {
  stored_.insert(object.key);
  object_bytes_ += object.bytes;
  ++totals_.puts;
  lru_.touch(object);
}

Result<Outcomes> Master::handle(const PutRevoke& m, Time now) {
  MC_TRY_(check_batch(m.items.size()));
  Outcomes reply{epoch_, std::vector<Outcome>(m.items.size())};
  for (size_t i = 0; i < m.items.size(); ++i) {
    Object* object = find(m.items[i].key);
    if (object == nullptr || object->generation != m.items[i].generation) continue;
    if (object->state == ObjectState::kWriting)
      release(*object, {});
    else
      reply.items[i] = outcome(Code::kInvalid, strf("put of '%s' is published: remove it instead",
                                                    shown(object->key).c_str()));
  }
  finish(now);
  return reply;
}

void Master::handle(const Remove& m, Time now, Done<Outcomes> done) {
  if (auto sane = check_batch(m.keys.size()); !sane) return done(fail(sane.error()));
  if (m.keys.empty()) return done(Outcomes{epoch_, {}});
  auto gather = std::make_shared<Gather<Outcomes>>(
      Outcomes{epoch_, std::vector<Outcome>(m.keys.size())}, m.keys.size(), std::move(done));
  for (size_t i = 0; i < m.keys.size(); ++i) {
    Outcome& answer = gather->reply().items[i];
    Object* object = find_complete(m.keys[i]);
    if (auto key = check_object_key(m.keys[i]); !key) {
      answer = Outcome::of(key);
    } else if (object == nullptr) {
      const auto whole = sure(1, now);
      answer = whole ? outcome(Code::kNotFound, strf("no key '%s'", shown(m.keys[i]).c_str()))
                     : Outcome::of(whole);
    } else if (leases_.held(*object, now) && !m.force) {
      answer = outcome(Code::kBusy, strf("key '%s' is leased for %s ms more: retry, or force",
                                         shown(m.keys[i]).c_str(),
                                         number_text(to_ms(object->lease_until - now)).c_str()));
    } else {
      ++totals_.removed;
      auto left = std::make_shared<size_t>(object->replicas.size());
      release(*object, [gather, left] {
        if (--*left == 0) gather->decided();
      });
      continue;
    }
    gather->decided();
  }
  finish(now);
}

}  // namespace mc::store
