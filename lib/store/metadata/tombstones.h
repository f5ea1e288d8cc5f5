// Tombstones of objects removed while a holder was away. A node that was away (partitioned,
// stopped, its disk unplugged) returns with what it held. Some of that was removed or replaced
// meanwhile. A tombstone (hash of the name, generation) voids every older copy that a node brings
// back. Tombstones exist only for names that an absent node held when it left. If two names share a
// hash, a returning copy is lost; an answer is never wrong.
//
// The number of tombstones is bounded. Of those dropped, the newest generation is kept. A node that
// left before it loses everything older, because which of its copies are void is no longer known.
//
// Thread: one owner. Pure.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"

namespace mc::store {

// The name of a key on disks: in the default tenant (empty or "default") the key itself.
std::string in_space(std::string_view tenant, std::string_view key);
// The tenant, empty for the default one, and the key of such a name.
std::pair<std::string, std::string> parts_of(const std::string& name);

class Tombstones {
 public:
  explicit Tombstones(size_t most) : most_(most) {}

  // `name`: as disks know it (store/ssd/format.h). The latest of several generations counts.
  void add(std::string_view name, Generation before);
  // Whether an absent node held it.
  bool held_away(std::string_view name) const;
  // Adds a tombstone of an earlier master, unless full.
  void learn(uint64_t hash, Generation before);
  static uint64_t hash_of(std::string_view name);
  // Covers every name that starts with `prefix` in a tenant's `space`: its name and NUL, or
  // nothing. The latest of several generations counts.
  void add_prefix(const std::string& space, const std::string& prefix, Generation before);
  // The node left and held the names of these hashes. It had carried out every order before
  // `synced`. `more`: the list is incomplete; until the rest comes the node may have held any name.
  void left(const NodeId& node, Generation synced, std::vector<uint64_t> held, bool more = false);
  void node_rejoined(const NodeId& node);  // with its complete inventory
  // Whether a tombstone says that the name was removed or replaced since that generation.
  bool is_deleted(std::string_view name, Generation generation) const;
  // Whether the copy that a mounting node brings is void.
  bool dead(const NodeId& node, std::string_view name, Generation generation) const;
  bool any_away() const { return !away_.empty(); }
  size_t size() const { return tombstones_.size(); }
  uint64_t memory() const;

 private:
  static constexpr size_t kAwayMax = 4096, kPrefixesMax = 1024, kPartMax = 8192;
  struct Away {
    Generation since;
    std::vector<std::vector<uint64_t>> held;  // each sorted
    bool more = false;
    bool has(uint64_t hash) const;
  };
  struct Prefix {
    size_t space = 0;  // bytes of it
    std::string start;
    Generation before;
  };
  void give_up(Generation generation) { forgotten_ = std::max(forgotten_, generation); }

  const size_t most_;
  std::unordered_map<uint64_t, Generation> tombstones_;
  std::deque<std::pair<uint64_t, Generation>> order_;  // by age; a name's latest counts
  std::deque<Prefix> prefixes_;
  Generation forgotten_;  // the newest dropped
  std::map<NodeId, Away> away_;
};

}  // namespace mc::store
