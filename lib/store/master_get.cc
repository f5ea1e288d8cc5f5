// Reading and looking: places with leases, prefix matches, lists and figures.
#include <algorithm>

#include "store/master.h"

namespace mc::store {
namespace {

constexpr Duration kWaitMax = std::chrono::seconds(60);
constexpr Duration kDoubt = std::chrono::milliseconds(100);  // one hold of a call in a rebuild
constexpr size_t kParkedMax = 1 << 16;

Result<> check_keys(const std::vector<ObjectKey>& keys) {
  if (keys.size() > kBatchMax)
    return fail(Code::kInvalid, "%zu keys in one call: %zu at most", keys.size(), kBatchMax);
  return {};
}

uint32_t index_of(std::vector<NodeRef>& nodes, const NodeRef& node) {
  for (size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].generation == node.generation && nodes[i].name == node.name)
      return static_cast<uint32_t>(i);
  nodes.push_back(node);
  return static_cast<uint32_t>(nodes.size() - 1);
}

}  // namespace

Replicas Master::locate(const GetReplicas& m, Time now) {
  Replicas reply;
  reply.epoch = epoch_;
  reply.lease_ms = static_cast<uint32_t>(leases_.ttl() / std::chrono::milliseconds(1));
  reply.items.resize(m.keys.size());
  for (size_t i = 0; i < m.keys.size(); ++i) {
    Located& item = reply.items[i];
    Object* object = find_complete(m.keys[i]);
    if (object == nullptr) {
      ++totals_.misses;
      auto key = check_object_key(m.keys[i]);
      item.outcome = key ? Outcome{static_cast<uint8_t>(Code::kNotFound),
                                   strf("no key '%s'", shown(m.keys[i]).c_str())}
                         : Outcome::of(key);
      continue;
    }
    ++totals_.hits;
    lru_.drop(*object);
    leases_.grant(*object, now);
    item.bytes = object->bytes;
    item.checksum = object->checksum;
    item.generation = object->generation;
    std::vector<Replica> at = object->replicas;
    std::stable_partition(at.begin(), at.end(), [&](const Replica& r) {
      return !members_.liveness().suspect(r.node->ref.name, now);
    });
    for (const Replica& r : at) {
      const uint64_t offset = r.node->layout.data + r.offset;
      item.places.push_back(
          {index_of(reply.nodes, r.node->ref), offset, r.node->layout.guard_of(offset)});
    }
  }
  return reply;
}

// What the answer of `answer` depends on is waited for: keys that may yet be put, and, while nodes
// are still missing, for what they hold.
void Master::look(const std::vector<ObjectKey>& keys, Duration wait, Time now,
                  std::function<void(Time now)> answer) {
  const size_t open = missing(keys);
  const bool unsure = (open > 0 || keys.empty()) && !rebuild_.over(now);
  Time until = open > 0 ? now + std::min(wait, kWaitMax) : now;
  if (unsure) until = std::max(until, std::min(now + kDoubt, rebuild_.end()));
  if (until <= now || parked_looks_.size() >= kParkedMax) return answer(now);
  const auto it = parked_looks_.emplace(until, ParkedLook{keys, open, std::move(answer), {}});
  it->second.self = it;
  for (const ObjectKey& key : keys)
    if (check_object_key(key) && find_complete(key) == nullptr)
      awaited_[key].push_back(&it->second);
}

void Master::wake_looks(const ObjectKey& key, Time now) {
  const auto it = awaited_.find(key);
  if (it == awaited_.end()) return;
  const auto waiting = std::move(it->second);
  awaited_.erase(it);
  for (ParkedLook* parked : waiting)
    if (--parked->missing == 0) answer_look(*parked, now);
}

void Master::answer_look(ParkedLook& parked, Time now) {
  for (const ObjectKey& key : parked.keys) {
    const auto it = awaited_.find(key);
    if (it == awaited_.end()) continue;
    std::erase(it->second, &parked);
    if (it->second.empty()) awaited_.erase(it);
  }
  const auto answer = std::move(parked.answer);
  parked_looks_.erase(parked.self);
  answer(now);
}

size_t Master::missing(const std::vector<ObjectKey>& keys) const {
  return static_cast<size_t>(std::count_if(keys.begin(), keys.end(), [&](const ObjectKey& key) {
    return check_object_key(key) && find_complete(key) == nullptr;
  }));
}

// Whether what is not known is not there.
Result<> Master::sure(size_t missing, Time now) const {
  if (missing == 0 || rebuild_.over(now)) return {};
  return fail(Code::kUnavailable, "%s", rebuild_.why(now).c_str());
}

void Master::handle(const GetReplicas& m, Time now, Done<Replicas> done) {
  if (auto sane = check_keys(m.keys); !sane) return done(fail(sane.error()));
  if (m.keys.empty()) return done(locate(m, now));
  look(m.keys, std::chrono::milliseconds(m.wait_ms), now,
       [this, m, done = std::move(done)](Time then) {
         auto whole = sure(missing(m.keys), then);
         done(whole ? Result<Replicas>(locate(m, then)) : fail(whole.error()));
       });
  finish(now);
}

void Master::handle(const Exists& m, Time now, Done<Existing> done) {
  if (auto sane = check_keys(m.keys); !sane) return done(fail(sane.error()));
  if (m.keys.empty()) return done(Existing{epoch_, {}});
  look(m.keys, {}, now, [this, keys = m.keys, done = std::move(done)](Time then) {
    if (auto whole = sure(missing(keys), then); !whole) return done(fail(whole.error()));
    Existing reply{epoch_, {}};
    reply.items.reserve(keys.size());
    for (const ObjectKey& key : keys)
      reply.items.push_back(find_complete(key) != nullptr ? uint8_t{1} : uint8_t{0});
    done(reply);
  });
}

Result<Matched> Master::handle(const MatchPrefix& m, Time now) {
  MC_TRY_(check_keys(m.keys));
  Matched reply{epoch_, 0};
  for (const ObjectKey& key : m.keys) {
    Object* object = find_complete(key);
    if (object == nullptr) break;
    lru_.drop(*object);
    leases_.grant(*object, now);
    ++reply.hits;
  }
  return reply;
}

void Master::handle(const List& m, Time now, Done<Listed> done) {
  look({}, {}, now, [this, m, done = std::move(done)](Time then) {
    auto whole = sure(1, then);
    done(whole ? Result<Listed>(list(m, then)) : fail(whole.error()));
  });
}

Listed Master::list(const List& m, Time now) const {
  Listed reply;
  reply.epoch = epoch_;
  const uint32_t limit = std::clamp(m.limit, 1u, kListMax);
  auto it = m.after < m.prefix ? stored_.lower_bound(m.prefix) : stored_.upper_bound(m.after);
  for (; it != stored_.end() && it->starts_with(m.prefix); ++it) {
    if (reply.items.size() == limit) {
      reply.more = true;
      break;
    }
    const Object& object = *objects_.at(ObjectKey(*it));
    reply.items.push_back({object.key, object.bytes, object.checksum, object.generation,
                           static_cast<uint32_t>(object.replicas.size()),
                           leases_.held(object, now)});
  }
  return reply;
}

ClusterStat Master::handle(const Stat&, Time now) const {
  ClusterStat reply;
  reply.epoch = epoch_;
  reply.capacity = members_.capacity();
  reply.used = members_.used();
  reply.objects = stored_.size();
  reply.object_bytes = object_bytes_;
  reply.leased = leases_.size();
  reply.writing = objects_.size() - stored_.size();
  reply.evicted_objects = totals_.evicted_objects;
  reply.evicted_bytes = totals_.evicted_bytes;
  reply.rebuilding = rebuild_.why(now);
  for (const auto& [name, node] : members_.all()) {
    const bool suspect = members_.liveness().suspect(name, now);
    reply.nodes.push_back({name, node->ref.control,
                           !node->ready ? "mounting"
                           : suspect    ? "suspect"
                                        : "ready",
                           node->ref.generation, node->space.capacity(), node->space.used(),
                           node->releasing, node->holds.size(),
                           to_ms(members_.liveness().silence(name, now))});
  }
  return reply;
}

}  // namespace mc::store
