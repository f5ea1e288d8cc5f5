#include "store/metadata/disk_replica_index.h"

#include <algorithm>
#include <set>
#include <utility>

namespace mc::store {

namespace {
std::string space_of(const std::string& name) {
  const size_t nul = name.find('\0');
  return nul == std::string::npos ? std::string() : name.substr(0, nul + 1);
}
}  // namespace

struct DiskReplicaIndex::Holder {
  NodeRef node;
  uint64_t capacity = 0, used = 0, objects = 0, queued = 0;
  uint64_t value_max = UINT64_MAX;
  std::string trouble;
  bool ready = false;           // all pages of its mount have come
  uint64_t bytes = 0;           // held
  std::set<std::string> names;  // held; so drop() need not scan the others
  std::deque<TierJob> jobs;     // not yet acknowledged
  uint64_t next_seq = 1, told = 0;
  uint64_t offload_seq = 0, hurried = 0;  // newest offload; newest that is written at once
  std::map<std::pair<std::string, uint64_t>, std::vector<std::shared_ptr<Forgetting>>> forgets;
  std::function<void(const Result<TierWork>&)> beat;
  Time beat_until = Time::max();
};

Generation DiskReplicaIndex::OnDisk::newest() const {
  Generation newest;
  for (const Copy& c : copies) newest = std::max(newest, c.generation);
  return newest;
}

DiskReplicaIndex::DiskReplicaIndex(uint64_t queue_max) : queue_max_(queue_max) {}
DiskReplicaIndex::~DiskReplicaIndex() = default;

const NodeRef& DiskReplicaIndex::node_of(const Copy& copy) { return copy.holder->node; }

const DiskReplicaIndex::OnDisk* DiskReplicaIndex::find(const std::string& name) const {
  const auto it = objects_.find(name);
  return it == objects_.end() ? nullptr : &it->second;
}

// ---- messages of nodes

void DiskReplicaIndex::mount(const TierMount& m, const NodeRef& node, const Refused& refused,
                             Time now) {
  if (m.first) drop(m.node, now);
  auto& slot = holders_[m.node];
  if (slot == nullptr) {
    slot = std::make_unique<Holder>();
    slot->node = node;
    slot->capacity = m.capacity;
    slot->value_max = m.value_max == 0 ? UINT64_MAX : m.value_max;
  }
  for (const TierObject& object : m.objects) add(*slot, object, refused);
  slot->ready = m.last;
}

void DiskReplicaIndex::add(Holder& holder, const TierObject& o, const Refused& refused) {
  if (o.name.empty() || !o.generation || (refused && refused(o)))
    return order_forget({&holder, o.generation}, o.name, nullptr);
  auto it = objects_.find(o.name);
  if (it != objects_.end() && (it->second.bytes != o.bytes || it->second.checksum != o.checksum)) {
    if (it->second.newest() >= o.generation)
      return order_forget({&holder, o.generation}, o.name, nullptr);
    forget(o.name, {});
    it = objects_.end();
  }
  if (it == objects_.end()) {
    it = objects_
             .emplace(o.name, OnDisk{o.bytes, o.checksum, o.keep_until_s, o.cls, ++arrivals_, {}})
             .first;
    bytes_ += o.bytes;
    spaces_[space_of(o.name)].arrivals.emplace(arrivals_, &it->first);
  }
  if (holder.names.insert(o.name).second) holder.bytes += o.bytes;
  auto& copies = it->second.copies;
  const auto same = std::find_if(copies.begin(), copies.end(),
                                 [&](const Copy& c) { return c.holder == &holder; });
  if (same != copies.end())
    same->generation = std::max(same->generation, o.generation);
  else {
    copies.push_back({&holder, o.generation});
    count(o.name, o.bytes, true);
  }
}

void DiskReplicaIndex::remove(Holder& holder, const std::string& name, Generation generation) {
  const auto it = objects_.find(name);
  if (it == objects_.end()) return;
  auto& copies = it->second.copies;
  const auto copy = std::find_if(copies.begin(), copies.end(), [&](const Copy& c) {
    return c.holder == &holder && c.generation == generation;
  });
  if (copy == copies.end()) return;
  copies.erase(copy);
  holder.names.erase(name);
  holder.bytes -= it->second.bytes;
  count(name, it->second.bytes, false);
  if (copies.empty()) erase(it);
}

bool DiskReplicaIndex::beat(const TierHeartbeat& m, Time now,
                            std::function<void(const Result<TierWork>&)> done) {
  const auto it = holders_.find(m.node);
  if (it == holders_.end() || !it->second->ready) return false;
  Holder& h = *it->second;
  h.used = m.used;
  h.objects = m.objects;
  h.trouble = m.trouble.substr(0, 256);
  while (!h.jobs.empty() && h.jobs.front().seq <= m.taken) h.jobs.pop_front();
  h.told = std::min(h.told, m.taken);  // repeats what a lost answer carried
  h.hurried = std::min(h.hurried, m.taken);
  h.beat = std::move(done);
  constexpr uint32_t kHoldMax = 60'000;
  h.beat_until = now + std::chrono::milliseconds(std::min(m.hold_ms, kHoldMax));
  return true;
}

bool DiskReplicaIndex::report(const TierReport& m, Time now) {
  const auto it = holders_.find(m.node);
  if (it == holders_.end()) return false;
  Holder& h = *it->second;
  for (const TierResult& r : m.results) {
    if (r.event == static_cast<uint8_t>(TierEvent::kGone)) {
      remove(h, r.name, r.generation);
      end_forget(h, r.name, r.generation);
    } else if (r.event == static_cast<uint8_t>(TierEvent::kBrought)) {
      if (brought_) brought_(m.node, r.name, Code{}, now);
    } else if (r.event == static_cast<uint8_t>(TierEvent::kNotBrought)) {
      if (brought_) brought_(m.node, r.name, code_from_wire(r.code), now);
    } else {
      end_offload(m.node, r.name, r.generation, r.event == static_cast<uint8_t>(TierEvent::kStored),
                  now);
    }
  }
  return true;
}

void DiskReplicaIndex::end_offload(const NodeId& node, const std::string& name,
                                   Generation generation, bool stored, Time now) {
  const auto it = offloads_.find(name);
  if (it == offloads_.end() || it->second.node != node ||
      it->second.object.generation != generation) {
    // A repeated report, or the object was removed meanwhile.
    const auto h = holders_.find(node);
    if (!stored || h == holders_.end()) return;
    const OnDisk* object = find(name);
    const bool known =
        object != nullptr &&
        std::any_of(object->copies.begin(), object->copies.end(), [&](const Copy& c) {
          return c.holder == h->second.get() && c.generation == generation;
        });
    if (!known) order_forget({h->second.get(), generation}, name, nullptr);
    return;
  }
  const Offload offload = std::move(it->second);
  offloads_.erase(it);
  offloading_bytes_ -= offload.object.bytes;
  count(name, offload.object.bytes, false);
  const auto h = holders_.find(node);
  if (h != holders_.end()) {
    h->second->queued -= offload.object.bytes;
    if (stored) add(*h->second, offload.object, {});
  }
  if (offloaded_) offloaded_(name, generation, stored, now);
}

void DiskReplicaIndex::drop(const NodeId& node, Time now) {
  const auto it = holders_.find(node);
  if (it == holders_.end()) return;
  const std::unique_ptr<Holder> holder = std::move(it->second);
  holders_.erase(it);
  for (const std::string& name : holder->names) {
    const auto object = objects_.find(name);
    if (object == objects_.end()) continue;
    std::erase_if(object->second.copies, [&](const Copy& c) { return c.holder == holder.get(); });
    count(name, object->second.bytes, false);
    if (!object->second.copies.empty()) continue;
    if (lost_) lost_(name, object->second, now);
    erase(object);
  }
  std::vector<std::pair<std::string, Generation>> lost;
  for (const auto& [name, offload] : offloads_)
    if (offload.node == node) lost.emplace_back(name, offload.object.generation);
  for (const auto& [name, generation] : lost) end_offload(node, name, generation, false, now);
  for (const auto& [what, waiting] : holder->forgets)
    for (const auto& forgetting : waiting)
      if (--forgetting->open == 0 && forgetting->gone) forgetting->gone();
  if (holder->beat)
    holder->beat(TierWork{0, static_cast<uint8_t>(BeatStatus::kRemount), {}, false});
}

// ---- queries and orders of the master

DiskReplicaIndex::Queued DiskReplicaIndex::ask(const NodeId& node, uint64_t bytes) const {
  const auto it = holders_.find(node);
  if (it == holders_.end() || !it->second->ready || !it->second->trouble.empty())
    return Queued::kNo;
  const Holder& h = *it->second;
  if (bytes > h.capacity / 2 || bytes > h.value_max) return Queued::kNo;
  return h.queued > 0 && h.queued + bytes > queue_max_ ? Queued::kFull : Queued::kYes;
}

DiskReplicaIndex::Queued DiskReplicaIndex::offload(const NodeId& node, TierJob job, Time) {
  if (offloads_.contains(job.object.name)) return Queued::kYes;
  const Queued queued = ask(node, job.object.bytes);
  if (queued != Queued::kYes) return queued;
  Holder& h = *holders_.at(node);
  job.kind = static_cast<uint8_t>(TierJobKind::kOffload);
  job.seq = h.offload_seq = h.next_seq++;
  offloads_[job.object.name] = {node, job.object};
  offloading_bytes_ += job.object.bytes;
  count(job.object.name, job.object.bytes, true);
  h.queued += job.object.bytes;
  h.jobs.push_back(std::move(job));
  return Queued::kYes;
}

void DiskReplicaIndex::order_forget(const Copy& copy, const std::string& name,
                                    const std::shared_ptr<Forgetting>& forgetting) {
  Holder& h = *copy.holder;
  TierJob job;
  job.seq = h.next_seq++;
  job.kind = static_cast<uint8_t>(TierJobKind::kForget);
  job.object.name = name;
  job.object.generation = copy.generation;
  h.jobs.push_back(std::move(job));
  if (forgetting == nullptr) return;
  ++forgetting->open;
  h.forgets[{name, copy.generation.n}].push_back(forgetting);
}

void DiskReplicaIndex::end_forget(Holder& holder, const std::string& name, Generation generation) {
  const auto it = holder.forgets.find({name, generation.n});
  if (it == holder.forgets.end()) return;
  const auto waiting = std::move(it->second);
  holder.forgets.erase(it);
  for (const auto& forgetting : waiting)
    if (--forgetting->open == 0 && forgetting->gone) forgetting->gone();
}

void DiskReplicaIndex::forget(const std::string& name, std::function<void()> gone) {
  auto forgetting = std::make_shared<Forgetting>();
  if (const auto offload = offloads_.find(name); offload != offloads_.end()) {
    // Do not wait for the offload's end. If it was written after all, the holder forgets it.
    const NodeId node = offload->second.node;
    offloading_bytes_ -= offload->second.object.bytes;
    count(name, offload->second.object.bytes, false);
    if (const auto h = holders_.find(node); h != holders_.end()) {
      h->second->queued -= offload->second.object.bytes;
      order_forget({h->second.get(), offload->second.object.generation}, name, forgetting);
    }
    offloads_.erase(offload);
  }
  if (const auto it = objects_.find(name); it != objects_.end()) {
    const OnDisk object = it->second;
    erase(it);
    for (const Copy& copy : object.copies) {
      count(name, object.bytes, false);
      copy.holder->names.erase(name);
      copy.holder->bytes -= object.bytes;
      order_forget(copy, name, forgetting);
    }
  }
  if (forgetting->open == 0 && gone) return gone();
  forgetting->gone = std::move(gone);
}

// ---- tenants

void DiskReplicaIndex::count(const std::string& name, uint64_t bytes, bool more) {
  uint64_t& used = spaces_[space_of(name)].used;
  used = more ? used + bytes : used - bytes;
}

void DiskReplicaIndex::erase(std::map<std::string, OnDisk>::iterator object) {
  bytes_ -= object->second.bytes;
  spaces_[space_of(object->first)].arrivals.erase(object->second.arrived);
  objects_.erase(object);
}

uint64_t DiskReplicaIndex::used_by(const std::string& space) const {
  const auto it = spaces_.find(space);
  return it == spaces_.end() ? 0 : it->second.used;
}

std::optional<std::string> DiskReplicaIndex::oldest_of(
    const std::string& space, const std::function<bool(const OnDisk&)>& may_go) const {
  const auto it = spaces_.find(space);
  if (it == spaces_.end()) return std::nullopt;
  for (const auto& [arrived, name] : it->second.arrivals)
    if (may_go(objects_.at(*name))) return *name;
  return std::nullopt;
}

// ---- a draining node

std::vector<std::string> DiskReplicaIndex::names_after(const NodeId& node, const std::string& after,
                                                       size_t limit) const {
  std::vector<std::string> out;
  const auto h = holders_.find(node);
  if (h == holders_.end()) return out;
  const auto& names = h->second->names;
  for (auto it = names.upper_bound(after); it != names.end() && out.size() < limit; ++it)
    out.push_back(*it);
  return out;
}

std::pair<uint64_t, uint64_t> DiskReplicaIndex::held_by(const NodeId& node) const {
  const auto h = holders_.find(node);
  if (h == holders_.end()) return {};
  return {h->second->names.size(), h->second->bytes};
}

void DiskReplicaIndex::each_name(const NodeId& node,
                                 const std::function<void(const std::string&)>& f) const {
  const auto h = holders_.find(node);
  if (h == holders_.end()) return;
  for (const std::string& name : h->second->names) f(name);
  for (const auto& [name, offload] : offloads_)
    if (offload.node == node) f(name);
}

std::vector<std::pair<std::string, Generation>> DiskReplicaIndex::forgetting(
    const NodeId& node) const {
  std::vector<std::pair<std::string, Generation>> out;
  const auto h = holders_.find(node);
  if (h == holders_.end()) return out;
  for (const auto& [what, waiting] : h->second->forgets)
    out.emplace_back(what.first, Generation{what.second});
  for (const TierJob& job : h->second->jobs)
    if (job.kind == static_cast<uint8_t>(TierJobKind::kForget))
      out.emplace_back(job.object.name, job.object.generation);
  return out;
}

bool DiskReplicaIndex::empty(const NodeId& node) const {
  const auto h = holders_.find(node);
  if (h == holders_.end()) return true;
  return h->second->names.empty() && h->second->jobs.empty() && h->second->forgets.empty();
}

bool DiskReplicaIndex::bring(const NodeId& node, const std::string& name) {
  const auto h = holders_.find(node);
  if (h == holders_.end() || !h->second->ready) return false;
  TierJob job;
  job.seq = h->second->next_seq++;
  job.kind = static_cast<uint8_t>(TierJobKind::kBring);
  job.object.name = name;
  h->second->jobs.push_back(std::move(job));
  return true;
}

void DiskReplicaIndex::forget_copy(const NodeId& node, const std::string& name) {
  const auto it = objects_.find(name);
  if (it == objects_.end()) return;
  const auto& copies = it->second.copies;
  const auto copy = std::find_if(copies.begin(), copies.end(),
                                 [&](const Copy& c) { return c.holder->node.name == node; });
  if (copy == copies.end()) return;
  const Copy mine = *copy;
  order_forget(mine, name, std::make_shared<Forgetting>());
  remove(*mine.holder, name, mine.generation);
}

std::vector<DiskReplicaIndex::HolderStat> DiskReplicaIndex::stat() const {
  std::vector<HolderStat> out;
  for (const auto& [node, h] : holders_)
    out.push_back({node, h->capacity, h->used, h->names.size(), h->queued, h->trouble});
  return out;
}

void DiskReplicaIndex::answer(Time now, uint64_t epoch, bool puts_wait) {
  for (auto& [node, h] : holders_) {
    if (!h->beat) continue;
    const bool news = !h->jobs.empty() && h->jobs.back().seq > h->told;
    const bool hurry = puts_wait && h->queued > 0 && h->offload_seq > h->hurried;
    if (!news && !hurry && now < h->beat_until) continue;
    TierWork work{epoch, 0, {}, hurry};
    for (const TierJob& job : h->jobs) {
      if (work.jobs.size() == kTierJobsMax) break;
      work.jobs.push_back(job);
      h->told = job.seq;
    }
    if (hurry) h->hurried = h->told;
    h->beat_until = Time::max();
    std::exchange(h->beat, {})(work);
  }
}

Time DiskReplicaIndex::deadline() const {
  Time when = Time::max();
  for (const auto& [node, h] : holders_)
    if (h->beat) when = std::min(when, h->beat_until);
  return when;
}

}  // namespace mc::store
