// The objects on disks: one entry a name, with the copies of it that holders have. A holder is a
// number, which its user chooses.
//
// The copies of a lost holder are found by no query from then on. They leave the table a bounded
// number at a time, so that nobody waits while a million of them go.
// An object takes 72 bytes, a copy 32, and its key's memory.
//
// A name is the key, or the tenant's name, NUL, key. A `space` is what stands before the key.
//
// Thread: one owner. Pure.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/metadata/ordered_table.h"
#include "store/metadata/table.h"
#include "store/protocol/tier_messages.h"

namespace mc::store {

class DiskObjects {
 public:
  struct Copy {
    uint32_t holder = 0;
    Generation generation;  // as the holder knows it
  };
  struct OnDisk {
    uint64_t bytes = 0, checksum = 0;
    uint64_t keep_until_s = 0;
    uint8_t cls = 0;
    std::vector<Copy> copies;  // of holders that are there
    Generation newest() const;
  };
  struct Keyed {
    std::string key;
    OnDisk object;
  };

  // ---- queries
  std::optional<OnDisk> find(std::string_view name) const;
  bool has(std::string_view name) const;
  // The first object of `space` whose key is larger than `key`, or equal if `inclusive`. Steps over
  // objects without a copy, `most` at most, and counts them off.
  std::optional<Keyed> after(const std::string& space, std::string_view key, bool inclusive,
                             size_t& most) const;
  // The name of the object of `space` to evict: the context whose life has been over longest at
  // `now_s`, seconds of the wall clock; without one the oldest that is no context. Living contexts
  // are never named.
  std::optional<std::string> to_evict(const std::string& space, uint64_t now_s) const;
  uint64_t used_by(const std::string& space) const;  // all copies, and what was charged
  size_t size() const { return table_.size(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t memory() const;

  // ---- changes
  // Requires: an entry of that name with a copy agrees in size and checksum.
  void add(uint32_t holder, const TierObject& object);
  // Returns: the object, if that was its last copy.
  std::optional<OnDisk> remove(uint32_t holder, std::string_view name, Generation generation);
  std::vector<Copy> take(std::string_view name);  // removes all copies
  // Adds to what the name's space uses, or takes from it: for writes under way.
  void charge(std::string_view name, uint64_t bytes, bool more);

  // ---- a holder
  std::optional<Generation> held(uint32_t holder, std::string_view name) const;
  std::pair<uint64_t, uint64_t> held_by(uint32_t holder) const;  // objects and bytes
  // The name of an object that it holds. After turn() that of the next one, in turn.
  std::optional<std::string> first_on(uint32_t holder) const;
  void turn(uint32_t holder);
  void drop(uint32_t holder);  // it is lost
  // The one that was lost first and is not yet given up.
  std::optional<uint32_t> first_lost() const {
    return lost_.empty() ? std::nullopt : std::optional(lost_.front());
  }
  // Gives up one of its copies. Returns: false when it has none left; its number is free then.
  bool give_up();
  // `left`: a lost holder had that name, and may bring it back. `lost`: it was the last copy.
  using Left = std::function<void(uint32_t holder, const std::string& name)>;
  using Lost = std::function<void(uint32_t holder, const std::string& name, const OnDisk&)>;
  void on_loss(Left left, Lost lost) {
    left_ = std::move(left);
    gone_ = std::move(lost);
  }

 private:
  struct Entry {
    char* key_data = nullptr;  // the table's
    uint64_t bytes = 0, checksum = 0, keep_until_s = 0;
    Link arrival;         // of its space; a context has none
    Id copies = kNoId;    // the first
    uint32_t tenant = 0;  // the number of its space
    Id left = kNoId, right = kNoId, chain = kNoId, self = kNoId;
    uint32_t hash = 0;
    uint16_t key_bytes = 0;
    uint8_t cls = 0;
    bool waits : 1 = false, ordered : 1 = false;
    std::string_view key() const { return {key_data, key_bytes}; }
    bool is_context() const { return cls == static_cast<uint8_t>(ObjectClass::kContext); }
    Id& spare() { return chain; }
  };
  static_assert(sizeof(Entry) <= 72);
  struct CopyEntry {
    Generation generation;
    Link of_holder;
    Id object = kNoId, next = kNoId;  // the next copy of the object
    uint32_t holder = 0;
    Id& spare() { return next; }
  };
  static_assert(sizeof(CopyEntry) <= 32);
  struct Space {
    std::string name;
    uint64_t used = 0;
    IdList<Entry, &Entry::arrival> others;          // that are no contexts, in order of arrival
    std::set<std::pair<uint64_t, Id>> ending = {};  // contexts with an end, in its order
    void came(const Entry& object);
    void goes(const Entry& object);
  };
  struct Holder {
    uint64_t bytes = 0;
    bool lost = false;
    IdList<CopyEntry, &CopyEntry::of_holder> copies;
  };

  Space& space_of(std::string_view name);
  const Space* known_space(std::string_view space) const;
  const Entry* lookup(std::string_view name) const;
  Entry* lookup(std::string_view name);
  std::string name_of(const Entry& object) const;
  bool lives(const Entry& object) const;
  OnDisk on_disk(const Entry& object) const;
  Id copy_on(const Entry& object, uint32_t holder) const;
  Holder& known(uint32_t holder);
  void erase_copy(Id copy);
  void erase(Entry& object);  // its last copy is gone

  OrderedTable<Entry> table_;
  Slab<CopyEntry> copies_;
  std::vector<Holder> holders_;  // by number
  std::deque<uint32_t> lost_;    // holders
  std::vector<Space> spaces_;    // by number
  std::unordered_map<std::string, uint32_t> space_numbers_;
  uint64_t bytes_ = 0;
  Left left_;
  Lost gone_;
};

}  // namespace mc::store
