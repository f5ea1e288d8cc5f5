#include "trace/analyze/eviction.h"

#include <list>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/sieve.h"

namespace mc::trace {
namespace {

constexpr uint64_t kNever = UINT64_MAX;

// The base of every cache here: which blocks it holds, and which belong to the current request.
class Held {
 public:
  Held(uint32_t distinct, uint64_t capacity)
      : capacity_(capacity), held_(distinct), pinned_(distinct) {}
  bool has(uint32_t id) const { return held_[id]; }
  void pin(std::span<const uint32_t> ids, bool on) {
    for (const uint32_t id : ids) pinned_[id] = on;
  }

 protected:
  bool full() const { return size_ >= capacity_; }
  void in(uint32_t id) {
    held_[id] = true;
    ++size_;
  }
  void out(uint32_t id) {
    held_[id] = false;
    --size_;
  }
  bool may_go(uint32_t id) const { return !pinned_[id]; }

  uint64_t capacity_, size_ = 0;

 private:
  std::vector<uint8_t> held_, pinned_;
};

class Lfu : public Held {
 public:
  Lfu(uint32_t distinct, uint64_t capacity) : Held(distinct, capacity), at_(distinct) {}
  void touch(uint32_t id) {
    if (has(id)) {
      order_.erase({at_[id].uses, at_[id].time, id});
      ++at_[id].uses;
    } else {
      if (full()) evict();
      in(id);
      at_[id].uses = 1;
    }
    at_[id].time = ++now_;
    order_.emplace(at_[id].uses, at_[id].time, id);
  }

 private:
  struct Use {
    uint64_t uses = 0, time = 0;
  };
  void evict() {
    for (auto it = order_.begin(); it != order_.end(); ++it) {
      if (!may_go(std::get<2>(*it))) continue;
      out(std::get<2>(*it));
      order_.erase(it);
      return;
    }
  }
  std::vector<Use> at_;
  std::set<std::tuple<uint64_t, uint64_t, uint32_t>> order_;  // uses, time, id
  uint64_t now_ = 0;
};

// Removes the oldest evictable entry of a queue (oldest first); false when there is none.
template <class MayGo>
bool take_oldest(std::list<uint32_t>& queue, MayGo may_go, uint32_t* id) {
  for (auto it = queue.begin(); it != queue.end(); ++it) {
    if (!may_go(*it)) continue;
    *id = *it;
    queue.erase(it);
    return true;
  }
  return false;
}

class Fifo : public Held {
 public:
  using Held::Held;
  void touch(uint32_t id) {
    if (has(id)) return;
    uint32_t gone = 0;
    if (full() && take_oldest(
                      queue_, [&](uint32_t i) { return may_go(i); }, &gone))
      out(gone);
    in(id);
    queue_.push_back(id);
  }

 private:
  std::list<uint32_t> queue_;
};

class SieveCache : public Held {
 public:
  using Held::Held;
  void touch(uint32_t id) {
    if (has(id)) {
      sieve_.visit(id);
      return;
    }
    if (full())
      if (const auto gone = sieve_.evict([&](uint32_t i) { return may_go(i); })) out(*gone);
    in(id);
    sieve_.insert(id);
  }

 private:
  Sieve<uint32_t> sieve_;
};

template <uint8_t kOver>  // promoted when used more often than this in the small queue
class S3Fifo : public Held {
 public:
  S3Fifo(uint32_t distinct, uint64_t capacity)
      : Held(distinct, capacity),
        small_max_(std::max<uint64_t>(capacity / 10, 1)),
        uses_(distinct) {}
  void touch(uint32_t id) {
    if (has(id)) {
      uses_[id] = std::min<uint8_t>(uses_[id] + 1, 3);
      return;
    }
    while (full() && evict()) {
    }
    in(id);
    uses_[id] = 0;
    if (const auto ghost = remembered_.find(id); ghost != remembered_.end()) {
      ghosts_.erase(ghost->second);
      remembered_.erase(ghost);
      main_.push_back(id);
    } else {
      small_.push_back(id);
    }
  }

 private:
  bool evict() {
    if (small_.size() >= small_max_) return from_small() || from_main();
    return from_main() || from_small();
  }
  bool from_small() {
    uint32_t id = 0;
    while (take_oldest(
        small_, [&](uint32_t i) { return may_go(i); }, &id)) {
      if (uses_[id] > kOver) {
        uses_[id] = 0;
        main_.push_back(id);
        continue;
      }
      out(id);
      remember(id);
      return true;
    }
    return false;
  }
  bool from_main() {
    uint32_t id = 0;
    while (take_oldest(
        main_, [&](uint32_t i) { return may_go(i); }, &id)) {
      if (uses_[id] == 0) {
        out(id);
        return true;
      }
      --uses_[id];
      main_.push_back(id);
    }
    return false;
  }
  void remember(uint32_t id) {
    remembered_[id] = ghosts_.insert(ghosts_.end(), id);
    while (ghosts_.size() > capacity_ - std::min(capacity_, small_max_)) {
      remembered_.erase(ghosts_.front());
      ghosts_.pop_front();
    }
  }

  uint64_t small_max_;
  std::vector<uint8_t> uses_;
  std::list<uint32_t> small_, main_, ghosts_;                               // oldest first
  std::unordered_map<uint32_t, std::list<uint32_t>::iterator> remembered_;  // where in ghosts_
};

void count(CacheHits& hits, const Numbered& p, size_t i, uint64_t h, bool full_only) {
  if (full_only) {
    hits.hit_full_blocks += h;
  } else {
    hits.hit_blocks += h;
    hits.hit_tokens += p.tokens_in(i, h);
  }
}

template <class Cache>
void run(const Numbered& p, bool full_only, CacheHits& hits) {
  if (hits.capacity_blocks == 0) return;
  Cache cache(p.distinct, hits.capacity_blocks);
  for (size_t i = 0; i < p.size(); ++i) {
    auto ids = p.of(i, full_only);
    uint64_t h = 0;
    while (h < ids.size() && cache.has(ids[h])) ++h;
    count(hits, p, i, h, full_only);
    ids = ids.first(std::min<uint64_t>(ids.size(), hits.capacity_blocks));
    cache.pin(ids, true);
    for (size_t k = ids.size(); k-- > 0;) cache.touch(ids[k]);
    cache.pin(ids, false);
  }
}

// For each place in p.ids: the next prompt that has the same block.
std::vector<uint64_t> next_uses(const Numbered& p, bool full_only) {
  std::vector<uint64_t> next(p.ids.size(), kNever), upcoming(p.distinct, kNever);
  for (size_t i = p.size(); i-- > 0;) {
    const auto ids = p.of(i, full_only);
    for (size_t k = 0; k < ids.size(); ++k) {
      next[p.starts[i] + k] = upcoming[ids[k]];
      upcoming[ids[k]] = i;
    }
  }
  return next;
}

void run_opt(const Numbered& p, bool full_only, CacheHits& hits) {
  const std::vector<uint64_t> next = next_uses(p, full_only);
  using Use = std::tuple<uint64_t, uint64_t, uint32_t>;  // next use, place in the prompt, id
  std::set<Use> held;
  std::vector<Use> in(p.distinct, Use{kNever, 0, 0});  // kNever: not held
  for (size_t i = 0; i < p.size(); ++i) {
    const auto ids = p.of(i, full_only);
    uint64_t h = 0;
    while (h < ids.size() && std::get<0>(in[ids[h]]) != kNever) ++h;
    count(hits, p, i, h, full_only);
    for (size_t k = 0; k < ids.size(); ++k) {
      Use& use = in[ids[k]];
      if (std::get<0>(use) != kNever) held.erase(use);
      use = {next[p.starts[i] + k], k, ids[k]};
      if (std::get<0>(use) != kNever) held.insert(use);
    }
    while (held.size() > hits.capacity_blocks) {
      const auto furthest = std::prev(held.end());
      std::get<0>(in[std::get<2>(*furthest)]) = kNever;
      held.erase(furthest);
    }
  }
}

struct Order {
  const char* name;
  void (*run)(const Numbered&, bool full_only, CacheHits&);
};
constexpr Order kOrders[] = {
    {"lfu", run<Lfu>},           {"fifo", run<Fifo>},           {"sieve", run<SieveCache>},
    {"s3-fifo", run<S3Fifo<1>>}, {"s3-fifo-0", run<S3Fifo<0>>}, {"opt", run_opt}};

}  // namespace

Result<EvictionCurve> eviction_curve(const Numbered& prompts, const std::string& order,
                                     const std::vector<uint64_t>& capacities) {
  for (const Order& known : kOrders) {
    if (order != known.name) continue;
    EvictionCurve curve{order, {}};
    for (const uint64_t capacity : capacities) {
      CacheHits hits;
      hits.capacity_blocks = capacity;
      known.run(prompts, false, hits);
      known.run(prompts, true, hits);
      curve.points.push_back(hits);
    }
    return curve;
  }
  std::string names;
  for (const std::string& name : kEvictionOrders) names += " " + name;
  return fail(Code::kInvalid, "no eviction order '%s'; there are: lru%s", order.c_str(),
              names.c_str());
}

}  // namespace mc::trace
