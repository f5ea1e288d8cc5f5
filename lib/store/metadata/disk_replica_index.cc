#include "store/metadata/disk_replica_index.h"

#include <algorithm>
#include <utility>

namespace mc::store {

struct DiskReplicaIndex::Holder {
  using Waiting = std::vector<std::shared_ptr<Forgetting>>;

  explicit Holder(uint32_t number_given) : number(number_given) {}
  const uint32_t number;
  NodeRef node;
  uint64_t capacity = 0, used = 0, objects = 0, queued = 0;
  uint64_t value_max = UINT64_MAX;
  std::string trouble;
  bool ready = false;  // all pages of its mount have come
  uint64_t listing = 0, pages = 0;
  Time dropped_at;
  std::deque<TierJob> jobs;  // not yet acknowledged
  uint64_t next_seq = 1, told = 0;
  uint64_t offload_seq = 0, hurried = 0;  // newest offload; newest that is written at once
  using Forgets = std::map<std::pair<std::string, uint64_t>, Waiting>;
  Forgets forgets;
  // Those of the listing before that this one has not named so far.
  std::set<Forgets::key_type> unlisted;
  std::function<void(const Result<TierWork>&)> beat;

  bool lists(const TierListing& said) const { return said.number == 0 || said.number == listing; }
  void end_forget(const std::string& name, Generation generation) {
    const auto it = forgets.find({name, generation.n});
    if (it == forgets.end()) return;
    const auto waiting = std::move(it->second);
    forgets.erase(it);
    for (const auto& forgetting : waiting) forgetting->ended({});
  }
  // It is still under way, and nobody waits for it any more.
  void fail_forget(const std::string& name, Generation generation, Code code) {
    const auto waiting = std::exchange(forgets[{name, generation.n}], {});
    const Result<> outcome =
        fail(Code::kUnavailable, "the disk of node '%s' has it still (%s), and tries again",
             escape(node.name).c_str(), mc::name(code));
    for (const auto& forgetting : waiting) forgetting->ended(outcome);
  }
};

void DiskReplicaIndex::Forgetting::ended(const Result<>& of_holder) {
  if (!of_holder && outcome) outcome = of_holder;
  if (--open == 0 && gone) gone(outcome);
}

DiskReplicaIndex::DiskReplicaIndex(uint64_t queue_max) : queue_max_(queue_max) {
  objects_.on_loss(
      [this](uint32_t holder, const std::string& name) {
        if (left_) left_(holders_[holder]->node.name, name);
      },
      [this](uint32_t holder, const std::string& name, const DiskObjects::OnDisk& object) {
        if (lost_) lost_(name, object, holders_[holder]->dropped_at, true);
      });
}
DiskReplicaIndex::~DiskReplicaIndex() = default;

const NodeRef& DiskReplicaIndex::node_of(const DiskObjects::Copy& copy) const {
  return holders_[copy.holder]->node;
}

std::optional<uint32_t> DiskReplicaIndex::number_of(const NodeId& node) const {
  const auto it = numbers_.find(node);
  return it == numbers_.end() ? std::nullopt : std::optional(it->second);
}

DiskReplicaIndex::Holder* DiskReplicaIndex::holder_of(const NodeId& node) const {
  const auto number = number_of(node);
  return number ? holders_[*number].get() : nullptr;
}

// ---- messages of nodes

bool DiskReplicaIndex::mount(const TierMount& m, const NodeRef& node, const Refused& refused,
                             Time now) {
  Holder* holder = holder_of(m.node);
  if (const uint64_t number = m.listing.number; number != 0) {
    const bool begins = m.first && (holder == nullptr || number > holder->listing);
    const bool goes_on =
        !m.first && holder != nullptr && number == holder->listing && m.page == holder->pages;
    if (!begins && !goes_on) return false;
  }
  Holder::Forgets open;  // what the disk lists again is not forgotten yet
  if (m.first) {
    if (holder != nullptr) open = std::exchange(holder->forgets, {});
    drop(m.node, now);
    holder = nullptr;
  }
  if (holder == nullptr) {
    auto slot = std::find(holders_.begin(), holders_.end(), nullptr);
    if (slot == holders_.end()) slot = holders_.insert(slot, nullptr);
    const auto number = static_cast<uint32_t>(slot - holders_.begin());
    *slot = std::make_unique<Holder>(number);
    holder = slot->get();
    numbers_[m.node] = number;
    holder->node = node;
    holder->capacity = m.capacity;
    holder->value_max = m.value_max == 0 ? UINT64_MAX : m.value_max;
    holder->listing = m.listing.number;
    for (const auto& [what, waiting] : open) holder->unlisted.insert(what);
    holder->forgets = std::move(open);
  }
  ++holder->pages;
  for (const TierObject& object : m.objects) add(*holder, object, refused);
  holder->ready = m.last;
  if (m.last)
    for (const auto& [name, generation] : std::exchange(holder->unlisted, {}))
      holder->end_forget(name, Generation{generation});
  return true;
}

void DiskReplicaIndex::add(Holder& holder, const TierObject& o, const Refused& refused) {
  const bool open = holder.unlisted.erase({o.name, o.generation.n}) > 0;
  const bool sound = !open && !o.name.empty() && o.name.size() <= UINT16_MAX && o.generation;
  if (!sound || (refused && refused(o))) return order_forget(holder, o.name, o.generation, nullptr);
  const auto known = objects_.find(o.name);
  if (known && (known->bytes != o.bytes || known->checksum != o.checksum)) {
    if (known->newest() >= o.generation) return order_forget(holder, o.name, o.generation, nullptr);
    forget(o.name, {});
  }
  objects_.add(holder.number, o);
}

bool DiskReplicaIndex::beat(const TierHeartbeat& m, Time now,
                            std::function<void(const Result<TierWork>&)> done) {
  Holder* const known = holder_of(m.node);
  if (known == nullptr || !known->ready || !known->lists(m.listing)) return false;
  Holder& h = *known;
  h.used = m.used;
  h.objects = m.objects;
  h.trouble = m.trouble.substr(0, 256);
  while (!h.jobs.empty() && h.jobs.front().seq <= m.taken) h.jobs.pop_front();
  h.told = std::min(h.told, m.taken);  // repeats what a lost answer carried
  h.hurried = std::min(h.hurried, m.taken);
  h.beat = std::move(done);
  constexpr uint32_t kHoldMax = 60'000;
  beats_.hold(h.number, now + std::chrono::milliseconds(std::min(m.hold_ms, kHoldMax)));
  beats_.stir(h.number);
  return true;
}

bool DiskReplicaIndex::report(const TierReport& m, Time now) {
  Holder* const h = holder_of(m.node);
  if (h == nullptr || !h->lists(m.listing)) return false;
  for (const TierResult& r : m.results) {
    const bool gone = r.event == static_cast<uint8_t>(TierEvent::kGone);
    if (gone || r.event == static_cast<uint8_t>(TierEvent::kNotGone)) {
      const auto last = objects_.remove(h->number, r.name, r.generation);
      if (last && lost_) lost_(r.name, *last, now, false);
      if (gone)
        h->end_forget(r.name, r.generation);
      else
        h->fail_forget(r.name, r.generation, code_from_wire(r.code));
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

void DiskReplicaIndex::set_queued(Holder& holder, uint64_t bytes) {
  holder.queued = bytes;
  if (bytes == 0)
    writing_.erase(holder.number);
  else
    writing_.insert(holder.number);
}

void DiskReplicaIndex::end_offload(const NodeId& node, const std::string& name,
                                   Generation generation, bool stored, Time now) {
  Holder* const h = holder_of(node);
  const auto it = offloads_.find(name);
  if (it == offloads_.end() || it->second.first != node ||
      it->second.second.generation != generation) {
    // A repeated report, or the object was removed meanwhile.
    if (stored && h != nullptr && objects_.held(h->number, name) != generation)
      order_forget(*h, name, generation, nullptr);
    return;
  }
  const TierObject object = std::move(it->second.second);
  offloads_.erase(it);
  offloading_bytes_ -= object.bytes;
  objects_.charge(name, object.bytes, false);
  if (h != nullptr) {
    set_queued(*h, h->queued - object.bytes);
    if (stored) add(*h, object, {});
  }
  if (offloaded_) offloaded_(name, generation, stored, now);
}

// ---- lost nodes

void DiskReplicaIndex::drop(const NodeId& node, Time now) {
  const auto it = numbers_.find(node);
  if (it == numbers_.end()) return;
  Holder& holder = *holders_[it->second];
  numbers_.erase(it);
  holder.dropped_at = now;
  objects_.drop(holder.number);
  beats_.forget(holder.number);
  writing_.erase(holder.number);
  std::vector<std::pair<std::string, Generation>> open;
  for (const auto& [name, offload] : offloads_)
    if (offload.first == node) open.emplace_back(name, offload.second.generation);
  for (const auto& [name, generation] : open) {
    if (left_) left_(node, name);
    end_offload(node, name, generation, false, now);
  }
  holder.jobs.clear();
  for (const auto& [what, waiting] : std::exchange(holder.forgets, {}))
    for (const auto& forgetting : waiting) forgetting->ended({});
  if (const auto beat = std::exchange(holder.beat, nullptr))
    beat(TierWork{0, static_cast<uint8_t>(BeatStatus::kRemount), {}, false});
}

size_t DiskReplicaIndex::go_on_dropping(size_t most) {
  while (const auto number = objects_.first_lost()) {
    if (objects_.held_by(*number).first > 0 && most == 0) break;
    if (objects_.give_up())
      --most;
    else
      holders_[*number].reset();
  }
  return most;
}

bool DiskReplicaIndex::dropping(const NodeId& node) const {
  if (!objects_.first_lost()) return false;
  return std::any_of(holders_.begin(), holders_.end(), [&](const auto& h) {
    return h != nullptr && h->node.name == node && number_of(node) != h->number;
  });
}

// ---- orders of the master

DiskReplicaIndex::Queued DiskReplicaIndex::ask(const NodeId& node, uint64_t bytes) const {
  const Holder* const h = holder_of(node);
  if (h == nullptr || !h->ready || !h->trouble.empty()) return Queued::kNo;
  if (bytes > h->capacity / 2 || bytes > h->value_max) return Queued::kNo;
  return h->queued > 0 && h->queued + bytes > queue_max_ ? Queued::kFull : Queued::kYes;
}

DiskReplicaIndex::Queued DiskReplicaIndex::offload(const NodeId& node, TierJob job, Time) {
  if (offloads_.contains(job.object.name)) return Queued::kYes;
  const Queued queued = ask(node, job.object.bytes);
  if (queued != Queued::kYes) return queued;
  Holder& h = *holder_of(node);
  job.kind = static_cast<uint8_t>(TierJobKind::kOffload);
  offloads_[job.object.name] = {node, job.object};
  offloading_bytes_ += job.object.bytes;
  objects_.charge(job.object.name, job.object.bytes, true);
  set_queued(h, h.queued + job.object.bytes);
  h.offload_seq = h.next_seq;
  push(h, std::move(job));
  return Queued::kYes;
}

void DiskReplicaIndex::push(Holder& h, TierJob job) {
  job.seq = h.next_seq++;
  h.jobs.push_back(std::move(job));
  beats_.stir(h.number);
}

void DiskReplicaIndex::order_forget(Holder& h, const std::string& name, Generation generation,
                                    const std::shared_ptr<Forgetting>& forgetting) {
  TierJob job;
  job.kind = static_cast<uint8_t>(TierJobKind::kForget);
  job.object.name = name;
  job.object.generation = generation;
  push(h, std::move(job));
  if (forgetting == nullptr) return;
  ++forgetting->open;
  h.forgets[{name, generation.n}].push_back(forgetting);
}

bool DiskReplicaIndex::forget(const std::string& name, Gone gone) {
  auto forgetting = std::make_shared<Forgetting>();
  for (const auto& h : holders_) {
    if (h == nullptr || h->forgets.empty()) continue;
    for (auto it = h->forgets.lower_bound({name, 0});
         it != h->forgets.end() && it->first.first == name; ++it) {
      ++forgetting->open;
      it->second.push_back(forgetting);
    }
  }
  if (const auto it = offloads_.find(name); it != offloads_.end()) {
    // Do not wait for the offload's end. If it was written after all, the holder forgets it.
    const auto [node, object] = std::move(it->second);
    offloads_.erase(it);
    offloading_bytes_ -= object.bytes;
    objects_.charge(name, object.bytes, false);
    if (Holder* const h = holder_of(node); h != nullptr) {
      set_queued(*h, h->queued - object.bytes);
      order_forget(*h, name, object.generation, forgetting);
    }
  }
  for (const DiskObjects::Copy& copy : objects_.take(name))
    order_forget(*holders_[copy.holder], name, copy.generation, forgetting);
  forgetting->gone = std::move(gone);
  return forgetting->open > 0;
}

// ---- a draining node

void DiskReplicaIndex::turn(const NodeId& node) {
  if (const auto number = number_of(node)) objects_.turn(*number);
}

std::vector<std::pair<std::string, Generation>> DiskReplicaIndex::forgetting(
    const NodeId& node) const {
  std::vector<std::pair<std::string, Generation>> out;
  const Holder* const h = holder_of(node);
  if (h == nullptr) return out;
  for (const auto& [what, waiting] : h->forgets)
    out.emplace_back(what.first, Generation{what.second});
  for (const TierJob& job : h->jobs)
    if (job.kind == static_cast<uint8_t>(TierJobKind::kForget))
      out.emplace_back(job.object.name, job.object.generation);
  return out;
}

bool DiskReplicaIndex::empty(const NodeId& node) const {
  const Holder* const h = holder_of(node);
  return h == nullptr ||
         (objects_.held_by(h->number).first == 0 && h->jobs.empty() && h->forgets.empty());
}

bool DiskReplicaIndex::bring(const NodeId& node, const std::string& name) {
  Holder* const h = holder_of(node);
  if (h == nullptr || !h->ready) return false;
  TierJob job;
  job.kind = static_cast<uint8_t>(TierJobKind::kBring);
  job.object.name = name;
  push(*h, std::move(job));
  return true;
}

void DiskReplicaIndex::forget_copy(const NodeId& node, const std::string& name, Time now) {
  Holder* const h = holder_of(node);
  const auto generation = h == nullptr ? std::nullopt : objects_.held(h->number, name);
  if (!generation) return;
  order_forget(*h, name, *generation, std::make_shared<Forgetting>());
  const auto last = objects_.remove(h->number, name, *generation);
  if (last && lost_) lost_(name, *last, now, false);
}

std::vector<DiskReplicaIndex::HolderStat> DiskReplicaIndex::stat() const {
  std::vector<HolderStat> out;
  for (const auto& [node, number] : numbers_) {
    const Holder& h = *holders_[number];
    out.push_back({node, h.capacity, h.used, objects_.held_by(number).first, h.queued, h.trouble});
  }
  return out;
}

// ---- held heartbeats

void DiskReplicaIndex::release(Holder& h, uint64_t epoch, bool hurry) {
  TierWork work{epoch, 0, {}, hurry};
  for (const TierJob& job : h.jobs) {
    if (work.jobs.size() == kTierJobsMax) break;
    work.jobs.push_back(job);
    h.told = job.seq;
  }
  if (hurry) h.hurried = h.told;
  beats_.release(h.number);
  std::exchange(h.beat, {})(work);
}

void DiskReplicaIndex::answer(Time now, uint64_t epoch, bool puts_wait) {
  const auto hurries = [&](const Holder& h) {
    return puts_wait && h.queued > 0 && h.offload_seq > h.hurried;
  };
  for (const uint32_t number : beats_.take_stirred()) {
    Holder& h = *holders_[number];
    const bool news = !h.jobs.empty() && h.jobs.back().seq > h.told;
    if (h.beat && (news || hurries(h))) release(h, epoch, hurries(h));
  }
  while (const auto number = beats_.due(now)) {
    Holder& h = *holders_[*number];
    release(h, epoch, hurries(h));
  }
  if (!puts_wait) return;
  for (const uint32_t number : writing_)
    if (Holder& h = *holders_[number]; h.beat && hurries(h)) release(h, epoch, true);
}

}  // namespace mc::store
