// What must not come back: a node that was away (partitioned, stopped, its disk unplugged) returns
// with what it held, of which some was removed or replaced meanwhile. A grave says that of one name
// everything older than a generation is dead; there are graves only of names that somebody who is
// away held when it left. Names are kept as hashes: that two are taken for one costs a returning
// copy, never a wrong answer.
//
// Only so many graves are kept. Of those given up the newest generation is remembered, and a node
// that was away since before it loses all that is older: it is not known any more what of it is
// dead.
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

// As disks know a key: its own name in the default tenant, which may be named or not.
std::string in_space(std::string_view tenant, std::string_view key);

class Tombstones {
 public:
  explicit Tombstones(size_t most) : most_(most) {}

  // `name`: as disks know it (store/ssd/format.h).
  void add(std::string_view name, Generation before);
  // Whether somebody who is away held it.
  bool held_away(std::string_view name) const;
  // Of an earlier master's, while there is room.
  void learn(uint64_t hash, Generation before);
  static uint64_t hash_of(std::string_view name);
  // Of all that starts with `prefix` in a tenant's `space`: its name and NUL, or nothing.
  void add_prefix(const std::string& space, const std::string& prefix, Generation before);
  // The node is gone, with what has these hashes; it had carried out all that was decided before
  // `synced`. `more`: that is not all, and until the rest is told it may have held anything.
  void left(const NodeId& node, Generation synced, std::vector<uint64_t> held, bool more = false);
  void node_rejoined(const NodeId& node);  // and has told all that it holds
  // Whether that name was removed, or replaced, since that generation, as far as is remembered.
  bool is_deleted(std::string_view name, Generation generation) const;
  // Whether what a node that mounts has of that name is dead.
  bool dead(const NodeId& node, std::string_view name, Generation generation) const;
  bool any_away() const { return !away_.empty(); }
  size_t size() const { return tombstones_.size(); }
  uint64_t memory() const;

 private:
  static constexpr size_t kAwayMax = 4096, kPrefixesMax = 1024, kPartMax = 8192;
  struct Away {
    Generation since;
    std::vector<std::vector<uint64_t>> held;  // each in order
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
  std::deque<std::pair<uint64_t, Generation>> order_;  // of burial; a later one of a name counts
  std::deque<Prefix> prefixes_;
  Generation forgotten_;  // the newest given up
  std::map<NodeId, Away> away_;
};

}  // namespace mc::store
