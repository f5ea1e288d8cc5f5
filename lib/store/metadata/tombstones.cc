#include "store/metadata/tombstones.h"

#include "base/hash.h"

namespace mc::store {

std::string in_space(std::string_view tenant, std::string_view key) {
  if (tenant.empty() || tenant == "default") return std::string(key);
  std::string name(tenant);
  return name.append(1, '\0').append(key);
}

std::pair<std::string, std::string> parts_of(const std::string& name) {
  const size_t nul = name.find('\0');
  if (nul == std::string::npos) return {"", name};
  return {name.substr(0, nul), name.substr(nul + 1)};
}

uint64_t Tombstones::hash_of(std::string_view name) { return xxh3(name); }

void Tombstones::learn(uint64_t hash, Generation before) {
  if (order_.size() >= most_) return;
  const auto [it, first] = tombstones_.emplace(hash, before);
  if (!first && it->second >= before) return;
  it->second = before;
  order_.emplace_back(hash, before);
}

void Tombstones::add(std::string_view name, Generation before) {
  const uint64_t hash = hash_of(name);
  Generation& known = tombstones_[hash];
  if (known >= before) return;  // what was void once stays void
  known = before;
  order_.emplace_back(hash, before);
  while (order_.size() > most_) {
    const auto [oldest, generation] = order_.front();
    order_.pop_front();
    const auto it = tombstones_.find(oldest);
    if (it == tombstones_.end() || it->second != generation) continue;  // added again since
    give_up(generation);
    tombstones_.erase(it);
  }
}

void Tombstones::add_prefix(const std::string& space, const std::string& prefix,
                            Generation before) {
  const std::string start = space + prefix;
  for (Prefix& p : prefixes_)
    if (p.space == space.size() && p.start == start) {
      p.before = std::max(p.before, before);
      return;
    }
  prefixes_.push_back({space.size(), start, before});
  if (prefixes_.size() <= kPrefixesMax) return;
  give_up(prefixes_.front().before);
  prefixes_.pop_front();
}

bool Tombstones::held_away(std::string_view name) const {
  const uint64_t hash = hash_of(name);
  return std::any_of(away_.begin(), away_.end(),
                     [hash](const auto& away) { return away.second.has(hash); });
}

bool Tombstones::Away::has(uint64_t hash) const {
  return more || std::any_of(held.begin(), held.end(), [hash](const auto& part) {
           return std::binary_search(part.begin(), part.end(), hash);
         });
}

void Tombstones::left(const NodeId& node, Generation synced, std::vector<uint64_t> held,
                      bool more) {
  const auto known = away_.find(node);
  if (known == away_.end() && away_.size() >= kAwayMax) return;
  Away& away = away_[node];
  // Known already: it left before its inventory was complete, or this is another part of the list.
  away.since = known == away_.end() ? synced : std::min(away.since, synced);
  away.more = more;
  if (held.empty()) return;
  std::sort(held.begin(), held.end());
  // Merge small parts: few parts to search, and no long merge.
  if (!away.held.empty() && away.held.back().size() + held.size() <= kPartMax) {
    std::vector<uint64_t>& last = away.held.back();
    const auto middle = static_cast<ptrdiff_t>(last.size());
    last.insert(last.end(), held.begin(), held.end());
    std::inplace_merge(last.begin(), last.begin() + middle, last.end());
    held = std::move(last);
    away.held.pop_back();
  }
  held.erase(std::unique(held.begin(), held.end()), held.end());
  held.shrink_to_fit();
  away.held.push_back(std::move(held));
}

void Tombstones::node_rejoined(const NodeId& node) { away_.erase(node); }

bool Tombstones::is_deleted(std::string_view name, Generation generation) const {
  if (const auto it = tombstones_.find(hash_of(name));
      it != tombstones_.end() && generation < it->second)
    return true;
  for (const Prefix& p : prefixes_) {
    const bool inside = name.starts_with(p.start) && name.find('\0', p.space) == name.npos;
    if (inside && generation < p.before) return true;
  }
  return false;
}

bool Tombstones::dead(const NodeId& node, std::string_view name, Generation generation) const {
  if (is_deleted(name, generation)) return true;
  const auto away = away_.find(node);
  const Generation since = away == away_.end() ? Generation{} : away->second.since;
  return generation < forgotten_ && since < forgotten_;
}

uint64_t Tombstones::memory() const {
  constexpr uint64_t kEntry = 40, kOrder = 16;  // about
  uint64_t bytes = tombstones_.size() * kEntry + order_.size() * kOrder;
  for (const auto& [node, away] : away_)
    for (const auto& part : away.held) bytes += part.size() * sizeof(uint64_t);
  return bytes;
}

}  // namespace mc::store
