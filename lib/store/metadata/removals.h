// Removals under way: names that holders still have to forget, and tombstones that nodes still have
// to remember. Who removes a name is answered when none of that is left. A call that is sent again
// waits for the same, though no table has the name any more: answered at once, it would promise
// what the next master could not keep.
//
// Thread: one owner. Pure.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/metadata/object.h"

namespace mc::store {

class Removal {
 public:
  using Ended = std::function<void()>;
  Removal(std::map<std::string, RemovalRef>& all, std::string name)
      : all_(all), name_(std::move(name)) {}
  void expect(size_t orders) { open_ += orders; }
  // Expects an order to that mount of a node, which is to remember it. Returns: false if one like
  // it is on its way there.
  bool remember(uint64_t mount, Generation before) {
    Generation& known = remembering_[mount];
    if (known >= before) return false;
    known = before;
    ++open_;
    return true;
  }
  void forgot(uint64_t mount) { remembering_.erase(mount); }  // it was carried out, or is lost
  size_t remembering(Generation before) const {
    size_t count = 0;
    for (const auto& [mount, known] : remembering_) count += known >= before ? 1 : 0;
    return count;
  }
  void wait(Ended ended) { waiting_.push_back(std::move(ended)); }
  // An order was carried out, or its node is gone.
  void decided() {
    if (--open_ > 0) return;
    const std::vector<Ended> waiting = std::move(waiting_);
    const RemovalRef self = std::move(all_.extract(name_).mapped());
    for (const Ended& ended : waiting) ended();
  }

 private:
  std::map<std::string, RemovalRef>& all_;
  const std::string name_;
  size_t open_ = 0;
  std::map<uint64_t, Generation> remembering_;  // by mount
  std::vector<Ended> waiting_;
};

class Removals {
 public:
  // The removal of that name, as disks know it: the one under way, or a new one. Requires: the
  // caller tells it of an order to expect, at once.
  RemovalRef of(const std::string& name) {
    RemovalRef& slot = all_[name];
    if (slot == nullptr) slot = std::make_shared<Removal>(all_, name);
    return slot;
  }
  // How many nodes have an order to remember that all before that generation is void.
  size_t remembering(const std::string& name, Generation before) const {
    const auto it = all_.find(name);
    return it == all_.end() ? 0 : it->second->remembering(before);
  }
  // Calls `ended` when the one under way ends. Returns: false if there is none.
  bool wait(const std::string& name, Removal::Ended ended) {
    const auto it = all_.find(name);
    if (it == all_.end()) return false;
    it->second->wait(std::move(ended));
    return true;
  }
  // Calls `ended` at the end of each that is under way and whose name has that prefix. `space`: as
  // for Tombstones::add_prefix(). Returns: how many there are.
  size_t wait_prefix(const std::string& space, const std::string& prefix,
                     const Removal::Ended& ended) {
    const std::string start = space + prefix;
    size_t count = 0;
    for (auto it = all_.lower_bound(start); it != all_.end() && it->first.starts_with(start); ++it)
      if (it->first.find('\0', space.size()) == std::string::npos) {
        it->second->wait(ended);
        ++count;
      }
    return count;
  }

 private:
  std::map<std::string, RemovalRef> all_;
};

}  // namespace mc::store
