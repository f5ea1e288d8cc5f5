#include "store/metadata/disk_objects.h"

#include <algorithm>

namespace mc::store {
namespace {

// The space of a name, and its key.
std::pair<std::string_view, std::string_view> split(std::string_view name) {
  const size_t nul = name.find('\0');
  const size_t space = nul == std::string_view::npos ? 0 : nul + 1;
  return {name.substr(0, space), name.substr(space)};
}

}  // namespace

Generation DiskObjects::OnDisk::newest() const {
  Generation newest;
  for (const Copy& c : copies) newest = std::max(newest, c.generation);
  return newest;
}

DiskObjects::Space& DiskObjects::space_of(std::string_view name) {
  const auto [it, fresh] =
      space_numbers_.emplace(split(name).first, static_cast<uint32_t>(spaces_.size()));
  if (fresh) spaces_.push_back({it->first, 0, IdList<Entry, &Entry::arrival>(table_.slab())});
  return spaces_[it->second];
}

const DiskObjects::Space* DiskObjects::known_space(std::string_view space) const {
  const auto it = space_numbers_.find(std::string(space));
  return it == space_numbers_.end() ? nullptr : &spaces_[it->second];
}

const DiskObjects::Entry* DiskObjects::lookup(std::string_view name) const {
  const auto [space, key] = split(name);
  const Space* const known = known_space(space);
  if (known == nullptr) return nullptr;
  return table_.find(static_cast<uint32_t>(known - spaces_.data()), key);
}

DiskObjects::Entry* DiskObjects::lookup(std::string_view name) {
  return const_cast<Entry*>(std::as_const(*this).lookup(name));
}

std::string DiskObjects::name_of(const Entry& object) const {
  return spaces_[object.tenant].name + std::string(object.key());
}

bool DiskObjects::lives(const Entry& object) const {
  for (Id id = object.copies; id != kNoId; id = copies_[id].next)
    if (!holders_[copies_[id].holder].lost) return true;
  return false;
}

DiskObjects::OnDisk DiskObjects::on_disk(const Entry& object) const {
  OnDisk out{object.bytes, object.checksum, object.keep_until_s, object.cls, {}};
  for (Id id = object.copies; id != kNoId; id = copies_[id].next)
    if (!holders_[copies_[id].holder].lost)
      out.copies.push_back({copies_[id].holder, copies_[id].generation});
  return out;
}

Id DiskObjects::copy_on(const Entry& object, uint32_t holder) const {
  Id id = object.copies;
  while (id != kNoId && copies_[id].holder != holder) id = copies_[id].next;
  return id;
}

DiskObjects::Holder& DiskObjects::known(uint32_t holder) {
  while (holders_.size() <= holder)
    holders_.push_back({0, false, IdList<CopyEntry, &CopyEntry::of_holder>(copies_)});
  return holders_[holder];
}

// ---- queries

bool DiskObjects::has(std::string_view name) const {
  const Entry* const object = lookup(name);
  return object != nullptr && lives(*object);
}

std::optional<DiskObjects::OnDisk> DiskObjects::find(std::string_view name) const {
  const Entry* const object = lookup(name);
  if (object == nullptr || !lives(*object)) return std::nullopt;
  return on_disk(*object);
}

std::optional<DiskObjects::Keyed> DiskObjects::after(const std::string& space, std::string_view key,
                                                     bool inclusive, size_t& most) const {
  const auto it = space_numbers_.find(space);
  if (it == space_numbers_.end()) return std::nullopt;
  for (const Entry* at = table_.after(it->second, key, inclusive); at != nullptr;
       at = table_.after(it->second, at->key(), false)) {
    if (lives(*at)) return Keyed{std::string(at->key()), on_disk(*at)};
    if (most == 0) return std::nullopt;
    --most;
  }
  return std::nullopt;
}

std::optional<std::string> DiskObjects::to_evict(const std::string& space, uint64_t now_s) const {
  const Space* const known = known_space(space);
  if (known == nullptr) return std::nullopt;
  if (const auto first = known->ending.begin();
      first != known->ending.end() && first->first <= now_s)
    return name_of(table_[first->second]);
  if (known->others.empty()) return std::nullopt;
  return name_of(table_[known->others.front()]);
}

uint64_t DiskObjects::used_by(const std::string& space) const {
  const Space* const known = known_space(space);
  return known == nullptr ? 0 : known->used;
}

uint64_t DiskObjects::memory() const {
  constexpr uint64_t kAllocated = 16;  // what malloc adds to a key, about
  constexpr uint64_t kEnding = 64;     // a node of a set, about
  uint64_t ending = 0;
  for (const Space& space : spaces_) ending += space.ending.size() * kEnding;
  return ending + table_.memory() + table_.key_bytes() + table_.size() * kAllocated +
         copies_.bytes();
}

// ---- changes

void DiskObjects::add(uint32_t holder, const TierObject& o) {
  Entry* object = lookup(o.name);
  if (object != nullptr && !lives(*object)) {  // only lost holders had it, with any content
    take(o.name);
    object = nullptr;
  }
  Space& space = space_of(o.name);
  if (object == nullptr) {
    object = &table_.insert(static_cast<uint32_t>(&space - spaces_.data()), split(o.name).second);
    object->bytes = o.bytes;
    object->checksum = o.checksum;
    object->keep_until_s = o.keep_until_s;
    object->cls = o.cls;
    space.came(*object);
    table_.list(*object);
    table_.sort();
    bytes_ += o.bytes;
  }
  if (const Id same = copy_on(*object, holder); same != kNoId) {
    copies_[same].generation = std::max(copies_[same].generation, o.generation);
    return;
  }
  const Id id = copies_.take();
  copies_[id].generation = o.generation;
  copies_[id].object = object->self;
  copies_[id].holder = holder;
  Id* last = &object->copies;
  while (*last != kNoId) last = &copies_[*last].next;
  *last = id;
  known(holder).copies.push_back(id);
  known(holder).bytes += o.bytes;
  space.used += o.bytes;
}

std::optional<DiskObjects::OnDisk> DiskObjects::remove(uint32_t holder, std::string_view name,
                                                       Generation generation) {
  Entry* const object = lookup(name);
  if (object == nullptr) return std::nullopt;
  const Id copy = copy_on(*object, holder);
  if (copy == kNoId || copies_[copy].generation != generation) return std::nullopt;
  erase_copy(copy);
  if (object->copies != kNoId) return std::nullopt;
  const OnDisk gone = on_disk(*object);
  erase(*object);
  return gone;
}

std::vector<DiskObjects::Copy> DiskObjects::take(std::string_view name) {
  Entry* const object = lookup(name);
  if (object == nullptr) return {};
  std::vector<Copy> copies = on_disk(*object).copies;
  while (object->copies != kNoId) erase_copy(object->copies);
  erase(*object);
  return copies;
}

void DiskObjects::charge(std::string_view name, uint64_t bytes, bool more) {
  uint64_t& used = space_of(name).used;
  used = more ? used + bytes : used - bytes;
}

void DiskObjects::Space::came(const Entry& object) {
  if (!object.is_context()) return others.push_back(object.self);
  if (object.keep_until_s != 0) ending.emplace(object.keep_until_s, object.self);
}

void DiskObjects::Space::goes(const Entry& object) {
  if (!object.is_context()) return others.erase(object.self);
  if (object.keep_until_s != 0) ending.erase({object.keep_until_s, object.self});
}

void DiskObjects::erase(Entry& object) {
  bytes_ -= object.bytes;
  spaces_[object.tenant].goes(object);
  table_.erase(object);
}

void DiskObjects::erase_copy(Id copy) {
  const CopyEntry gone = copies_[copy];
  Entry& object = table_[gone.object];
  Id* at = &object.copies;
  while (*at != copy) at = &copies_[*at].next;
  *at = gone.next;
  Holder& holder = holders_[gone.holder];
  holder.copies.erase(copy);
  holder.bytes -= object.bytes;
  spaces_[object.tenant].used -= object.bytes;
  copies_.give(copy);
  if (holder.lost && left_) left_(gone.holder, name_of(object));
}

// ---- a holder

std::optional<Generation> DiskObjects::held(uint32_t holder, std::string_view name) const {
  const Entry* const object = lookup(name);
  const Id copy = object == nullptr ? kNoId : copy_on(*object, holder);
  if (copy == kNoId) return std::nullopt;
  return copies_[copy].generation;
}

std::pair<uint64_t, uint64_t> DiskObjects::held_by(uint32_t holder) const {
  if (holder >= holders_.size()) return {};
  return {holders_[holder].copies.size(), holders_[holder].bytes};
}

std::optional<std::string> DiskObjects::first_on(uint32_t holder) const {
  if (holder >= holders_.size() || holders_[holder].copies.empty()) return std::nullopt;
  return name_of(table_[copies_[holders_[holder].copies.front()].object]);
}

void DiskObjects::turn(uint32_t holder) {
  if (holder >= holders_.size() || holders_[holder].copies.empty()) return;
  auto& copies = holders_[holder].copies;
  const Id first = copies.front();
  copies.erase(first);
  copies.push_back(first);
}

void DiskObjects::drop(uint32_t holder) {
  known(holder).lost = true;
  lost_.push_back(holder);
}

bool DiskObjects::give_up() {
  const uint32_t number = lost_.front();
  Holder& holder = holders_[number];
  if (holder.copies.empty()) {
    holder.lost = false;
    lost_.pop_front();
    return false;
  }
  const Id copy = holder.copies.front();
  Entry& object = table_[copies_[copy].object];
  erase_copy(copy);
  if (object.copies != kNoId) return true;
  if (gone_) gone_(number, name_of(object), on_disk(object));
  erase(object);
  return true;
}

}  // namespace mc::store
