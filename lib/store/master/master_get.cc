// Reads and queries: replica locations with leases, prefix matches, listings and statistics.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/hash.h"
#include "store/master/master.h"

namespace mc::store {
namespace {

constexpr Duration kLookWaitMax = std::chrono::seconds(60);
constexpr Duration kDoubt = std::chrono::milliseconds(100);  // one hold of a call in a rebuild
constexpr size_t kLooksParkedMax = 1 << 16, kListingsMax = 1 << 10;
constexpr size_t kSortMax = 128;  // objects ordered at a time: 1 ms in a table of ten million

constexpr size_t kLocatedMax = 1024;  // of an answer whose memory is reused

void clear(Located& item) {  // keeps its memory
  item.outcome.code = 0;
  item.outcome.what.clear();
  item.bytes = item.checksum = 0;
  item.generation = {};
  item.places.clear();
  item.disks.clear();
  item.healthy = 0;
}

// Of a call that waits for them: its message, what is awaited, and by whom.
uint64_t bytes_of(const std::vector<ObjectKey>& keys) {
  constexpr uint64_t kEach = 256;
  uint64_t bytes = kEach;
  for (const ObjectKey& key : keys) bytes += kEach + 3 * key.size();
  return bytes;
}

Result<> check_keys(const std::vector<ObjectKey>& keys) {
  if (keys.size() > kBatchMax)
    return fail(Code::kInvalid, "%zu keys in one call: %zu at most", keys.size(), kBatchMax);
  return {};
}

// Numbers the nodes that an answer names, from 1 on.
class HolderNumbers {
 public:
  explicit HolderNumbers(std::vector<NodeId>& names) : names_(names) {}
  // Returns 0 when the answer names enough already.
  size_t of(const NodeId& node) {
    if (const auto it = numbers_.find(node); it != numbers_.end()) return it->second;
    if (names_.size() == kHoldersMax) return 0;
    names_.push_back(node);
    return numbers_[node] = names_.size();
  }

 private:
  std::vector<NodeId>& names_;
  std::unordered_map<std::string_view, size_t> numbers_;  // names of nodes that outlive the call
};

}  // namespace

ReplicaLocation Master::place_of(const Object& object, const Replica& replica,
                                 std::vector<NodeRef>& nodes,
                                 std::vector<const Member*>& named) const {
  ReplicaLocation place;
  const auto known = std::find(named.begin(), named.end(), replica.node);
  place.node = static_cast<uint32_t>(known - named.begin());
  if (known == named.end()) {
    named.push_back(replica.node);
    nodes.push_back(replica.node->ref);
  }
  if (replica.generation != object.generation) place.generation = replica.generation;
  bool first = true;
  each_piece(replica, object.bytes, [&](const Extent& piece) {
    if (!std::exchange(first, false)) return place.more.push_back(piece);
    place.offset = piece.offset;
    place.guard = piece.guard;
    place.bytes = piece.bytes;
  });
  if (place.more.empty()) place.bytes = 0;
  return place;
}

// Prefetches the entries of a batch of keys.
void Master::warm(uint16_t tenant, std::span<const ObjectKey> keys) const {
  table_.warm(
      tenant, keys, [](const ObjectKey& key) { return std::string_view(key); },
      [](const Object& object) {
        if (object.node != nullptr) object.node->space.fetch(object.range);
      });
}

const Result<Replicas>& Master::locate(const GetReplicas& m, uint16_t tenant, Time now) {
  Replicas& reply = *located_;
  if (reply.items.capacity() > kLocatedMax) reply.items = {};
  reply.epoch = epoch_;
  reply.lease_ms = static_cast<uint32_t>(leases_.ttl() / std::chrono::milliseconds(1));
  reply.nodes.clear();
  reply.items.resize(m.keys.size());
  for (Located& item : reply.items) clear(item);
  std::vector<const Member*> named;
  std::vector<bool> well;  // of reply.nodes
  const bool unsure = !rebuild_.over(now);
  warm(tenant, m.keys);
  for (size_t i = 0; i < m.keys.size(); ++i) {
    Located& item = reply.items[i];
    Object* object = find_complete(tenant, m.keys[i]);
    const auto disk =
        tier_.any() ? tier_.objects().find(disk_name(tenant, m.keys[i])) : std::nullopt;
    if (object == nullptr && locate_on_disk(disk, reply, named, item)) {
      ++totals_.hits;
      ++totals_.disk_hits;
      continue;
    }
    if (object == nullptr) {
      if (!unsure) ++totals_.misses;
      const auto key = check_object_key(m.keys[i]);
      item.outcome =
          Outcome::of(!key     ? key
                      : unsure ? sure(1, now)
                               : fail(Code::kNotFound, "no key '%s'", escape(m.keys[i]).c_str()));
      continue;
    }
    ++totals_.hits;
    grant(*object, now);
    if (options_.hot_replicas > 1) note_heat(*object, now);
    item.bytes = object->bytes;
    item.checksum = object->checksum;
    item.generation = object->generation;
    each_replica(*object, [&](const Replica& r) {
      item.places.push_back(place_of(*object, r, reply.nodes, named));
    });
    while (well.size() < named.size())  // once per node, not per key
      well.push_back(members_.healthy(*named[well.size()], now));
    const auto rest = std::stable_partition(item.places.begin(), item.places.end(),
                                            [&](const ReplicaLocation& p) { return well[p.node]; });
    item.healthy = static_cast<uint32_t>(rest - item.places.begin());
    (void)locate_on_disk(disk, reply, named, item);
  }
  return located_;
}

// Delays `answer` until all keys are stored, or `wait` is over. During a rebuild it also waits for
// the inventories of missing nodes.
void Master::look(uint16_t tenant, const std::vector<ObjectKey>& keys, Duration wait, Time now,
                  std::function<void(Time now)> answer) {
  const size_t open = missing(tenant, keys);
  const bool unsure = (open > 0 || keys.empty()) && !rebuild_.over(now);
  Time until = open > 0 ? now + std::min(wait, kLookWaitMax) : now;
  if (unsure) until = std::max(until, std::min(now + kDoubt, rebuild_.end()));
  const uint64_t kept = bytes_of(keys);
  if (until <= now || parked_looks_.size() >= kLooksParkedMax ||
      parked_.kept + kept > Parking::kKeptMax)
    return answer(now);
  const auto it =
      parked_looks_.emplace(until, ParkedLook{tenant, keys, open, std::move(answer), {}, kept});
  it->second.self = it;
  parked_.kept += kept;
  for (const ObjectKey& key : keys)
    if (check_object_key(key) && !stored(tenant, key))
      awaited_[in_tenant(tenant, key)].push_back(&it->second);
}

void Master::wake_looks(const std::string& name, Time now) {
  const auto it = awaited_.find(name);
  if (it == awaited_.end()) return;
  const auto waiting = std::move(it->second);
  awaited_.erase(it);
  for (ParkedLook* parked : waiting)
    if (--parked->missing == 0) answer_look(*parked, now);
}

void Master::answer_look(ParkedLook& parked, Time now) {
  for (const ObjectKey& key : parked.keys) {
    const auto it = awaited_.find(in_tenant(parked.tenant, key));
    if (it == awaited_.end()) continue;
    std::erase(it->second, &parked);
    if (it->second.empty()) awaited_.erase(it);
  }
  const auto answer = std::move(parked.answer);
  parked_.kept -= parked.kept;
  parked_looks_.erase(parked.self);
  answer(now);
}

size_t Master::missing(uint16_t tenant, const std::vector<ObjectKey>& keys) {
  return static_cast<size_t>(std::count_if(keys.begin(), keys.end(), [&](const ObjectKey& key) {
    return !stored(tenant, key) && check_object_key(key);
  }));
}

// Whether an unknown key is absent.
Result<> Master::sure(size_t missing, Time now) const {
  if (missing == 0 || rebuild_.over(now)) return {};
  return fail(Code::kUnavailable, "%s", rebuild_.why(now).c_str());
}

void Master::handle(const GetReplicas& m, Time now, Done<Replicas> done) {
  if (auto sane = check_keys(m.keys); !sane) return done(fail(sane.error()));
  const auto tenant = tenants_.of_reader(m.tenant, m.wait_ms > 0);
  if (!tenant) return done(fail(tenant.error()));
  // Without a wait and a rebuild, one pass over the keys is enough.
  const bool at_once = m.wait_ms == 0 && rebuild_.over(now);
  if (at_once || missing(*tenant, m.keys) == 0) {
    done(locate(m, *tenant, now));
  } else {
    look(*tenant, m.keys, std::chrono::milliseconds(m.wait_ms), now,
         [this, m, tenant = *tenant, done = std::move(done)](Time then) {
           // Known keys do not wait for unknown ones.
           const size_t unknown = missing(tenant, m.keys);
           auto some = unknown < m.keys.size() ? Result<>() : sure(unknown, then);
           some ? done(locate(m, tenant, then)) : done(fail(some.error()));
         });
  }
  finish(now);
}

void Master::handle(const Exists& m, Time now, Done<Existing> done) {
  if (auto sane = check_keys(m.keys); !sane) return done(fail(sane.error()));
  if (m.keys.empty()) return done(Existing{epoch_, {}});
  const auto tenant = tenants_.of_reader(m.tenant, false);
  if (!tenant) return done(fail(tenant.error()));
  const auto existing = [this, tenant = *tenant](const std::vector<ObjectKey>& keys) {
    Existing reply{epoch_, {}};
    reply.items.reserve(keys.size());
    warm(tenant, keys);
    for (const ObjectKey& key : keys)
      reply.items.push_back(stored(tenant, key) ? uint8_t{1} : uint8_t{0});
    return reply;
  };
  if (rebuild_.over(now)) return done(existing(m.keys));
  look(*tenant, m.keys, {}, now,
       [this, existing, tenant = *tenant, keys = m.keys, done = std::move(done)](Time then) {
         auto whole = sure(missing(tenant, keys), then);
         done(whole ? Result<Existing>(existing(keys)) : fail(whole.error()));
       });
}

Result<Matched> Master::handle(const MatchPrefix& m, Time now) {
  MC_TRY_(check_keys(m.keys));
  const uint16_t tenant = tenants_.find(m.tenant);
  Matched reply{epoch_, 0};
  HolderNumbers numbers(reply.nodes);
  const auto add_place = [&](const Object* object, const ObjectKey& key) {
    StoredAt at = object == nullptr ? StoredAt::kDisk : StoredAt::kMemory;
    const NodeId* node = nullptr;  // of several the client reads the one that suits it
    if (object != nullptr) {
      size_t replicas = 0;
      each_replica(*object, [&](const Replica& r) {
        if (!m.host.empty() && r.node->host == m.host) at = StoredAt::kHost;
        node = ++replicas == 1 ? &r.node->ref.name : nullptr;
      });
    } else if (const auto disk = tier_.objects().find(disk_name(tenant, key));
               disk && disk->copies.size() == 1) {
      node = &tier_.node_of(disk->copies[0]).name;
    }
    reply.places.bytes.push_back(static_cast<char>(at));
    reply.holders.bytes.push_back(static_cast<char>(node == nullptr ? 0 : numbers.of(*node)));
  };
  // A run that ends early does not prefetch all keys of a long call.
  constexpr size_t kTogether = 64;
  for (size_t i = 0; i < m.keys.size(); ++i) {
    if (i % kTogether == 0)
      warm(tenant, std::span(m.keys).subspan(i, std::min(kTogether, m.keys.size() - i)));
    Object* object = find_complete(tenant, m.keys[i]);
    if (object == nullptr && !on_disk(tenant, m.keys[i])) break;
    if (object != nullptr) grant(*object, now);
    if (m.places) add_place(object, m.keys[i]);
    ++reply.hits;
  }
  return reply;
}

Result<Matched> Master::handle(const MatchBlocks& m, Time now) {
  const std::string_view hashes = m.hashes.bytes;
  if (m.hash_bytes == 0 || m.hash_bytes > kHashBytesMax || hashes.size() % m.hash_bytes != 0)
    return fail(Code::kInvalid, "match-blocks: %zu bytes of hashes of %u bytes: want 1 to %zu each",
                hashes.size(), m.hash_bytes, kHashBytesMax);
  const size_t count = hashes.size() / m.hash_bytes, ranks = m.prefixes.size();
  if (ranks == 0 || ranks * count > kBatchMax)
    return fail(Code::kInvalid, "match-blocks: %zu prefixes of %zu blocks: want 1 to %zu keys",
                ranks, count, kBatchMax);
  const uint16_t tenant = tenants_.find(m.tenant);
  Matched reply{epoch_, 0};
  constexpr size_t kTogether = 64;
  const size_t step = std::max<size_t>(1, kTogether / ranks);  // blocks, as above
  std::vector<ObjectKey> keys;
  std::vector<Object*> found;
  for (size_t at = 0; at < count; at += step) {
    keys.resize(std::min(step, count - at) * ranks);
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = m.prefixes[i % ranks];
      const auto* hash = reinterpret_cast<const uint8_t*>(hashes.data());
      append_hex(keys[i], {hash + (at + i / ranks) * m.hash_bytes, m.hash_bytes});
    }
    warm(tenant, keys);
    for (size_t i = 0; i < keys.size(); i += ranks) {
      found.clear();
      for (size_t rank = 0; rank < ranks; ++rank) {
        found.push_back(find_complete(tenant, keys[i + rank]));
        if (found.back() == nullptr && !on_disk(tenant, keys[i + rank])) return reply;
      }
      for (Object* object : found)
        if (object != nullptr) grant(*object, now);
      ++reply.hits;
    }
  }
  return reply;
}

void Master::handle(const List& m, Time now, Done<Listed> done) {
  look(0, {}, {}, now, [this, m, done = std::move(done)](Time then) {
    if (auto whole = sure(1, then); !whole) return done(fail(whole.error()));
    if (listing_.empty() && !tier_.objects().first_lost() && table_.sort(kSortMax))
      return done(list(m, tenants_.find(m.tenant), then));
    if (listing_.size() < kListingsMax) return listing_.push_back({m, done});
    done(fail(Code::kBusy, "%zu listings wait already: retry", listing_.size()));
  });
}

// Orders the keys for waiting listings in parts, between other calls.
void Master::go_on_listing(Time now) {
  if (listing_.empty() || tier_.objects().first_lost() || !table_.sort(kSortMax)) return;
  for (const auto& [m, done] : std::exchange(listing_, {}))
    done(list(m, tenants_.find(m.tenant), now));
}

Listed Master::list(const List& m, uint16_t tenant, Time now) const {
  Listed reply;
  reply.epoch = epoch_;
  reply.next_event = events_.next();
  const uint32_t limit = std::clamp(m.limit, 1u, kListMax);
  const bool from_prefix = m.after < m.prefix;
  const Object* at = table_.after(tenant, from_prefix ? m.prefix : m.after, from_prefix);
  for (; at != nullptr && at->key().starts_with(m.prefix);
       at = table_.after(tenant, at->key(), false)) {
    if (reply.items.size() == limit) {
      reply.more = true;
      break;
    }
    if (only_gone(*at)) continue;
    reply.items.push_back({ObjectKey(at->key()), at->bytes, at->checksum, at->generation,
                           static_cast<uint32_t>(replica_count(*at)), leases_.held(*at, now),
                           static_cast<uint8_t>(at->cls), static_cast<uint8_t>(at->pin)});
    if (replica_count(*at) == 1)
      each_replica(*at, [&](const Replica& r) { reply.items.back().node = r.node->ref.name; });
  }
  if (tier_.any()) list_disks(reply, m, tenant, limit);
  return reply;
}

Result<Replayed> Master::handle(const Replay& m, Time) const {
  Replayed reply;
  reply.epoch = epoch_;
  reply.next = events_.next();
  reply.events = events_.since(m.from, std::clamp(m.limit, 1u, kListMax), &reply.gap);
  return reply;
}

ClusterStat Master::handle(const Stat& m, Time now) {
  if (m.epoch_seen > epoch_ && m.epoch_seen <= started_s_ + kEpochsAheadMax) {
    epoch_ = m.epoch_seen + 1;
    counter_ = 0;
  }
  ClusterStat reply;
  reply.epoch = epoch_;
  reply.capacity = members_.capacity();
  reply.used = members_.used();
  reply.objects = table_.listed();
  reply.object_bytes = object_bytes_;
  reply.leased = leases_.size();
  reply.writing = table_.size() - table_.listed();
  reply.memory = memory();
  reply.evicted_objects = totals_.evicted_objects;
  reply.evicted_bytes = totals_.evicted_bytes;
  reply.rebuilding = rebuild_.why(now);
  reply.disk_objects = tier_.objects().size();
  reply.disk_bytes = tier_.objects().bytes();
  reply.offloading = tier_.offloading_bytes();
  for (const DiskReplicaIndex::HolderStat& h : tier_.stat())
    reply.tiers.push_back({h.node, h.capacity, h.used, h.objects, h.queued, h.trouble});
  for (const auto& tenant : tenants_.all())
    reply.tenants.push_back(
        {tenant->name, tenant->objects, tenant->used, tenant->quota,
         tier_.objects().used_by(tenant.get() == tenants_.all()[0].get() ? std::string()
                                                                         : tenant->name + '\0'),
         tenant->disk_quota});
  reply.puts = totals_.puts;
  reply.puts_waited = totals_.puts_waited;
  reply.put_no_space = totals_.put_no_space;
  reply.hits = totals_.hits;
  reply.misses = totals_.misses;
  reply.removed = totals_.removed;
  for (const auto& [name, node] : members_.all()) {
    const char* state = !node->ready                    ? "mounting"
                        : !members_.healthy(*node, now) ? "suspect"
                        : !node->draining               ? "ready"
                        : node->space.used() == 0       ? "drained"
                                                        : "draining";
    reply.nodes.push_back({name, node->ref.control, state, node->ref.generation,
                           node->space.capacity(), node->space.used(), node->releasing,
                           node->objects, to_ms(members_.liveness().silence(name, now)),
                           node->space.fragmentation(), node->host, node->domain, node->release});
  }
  return reply;
}

}  // namespace mc::store
