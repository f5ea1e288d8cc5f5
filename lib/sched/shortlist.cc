#include "sched/shortlist.h"

#include <algorithm>
#include <tuple>

namespace mc::sched {

std::strong_ordering PrefillShortlist::Key::operator<=>(const Key& o) const {
  if (const auto c = std::tie(first, tokens, assigned) <=> std::tie(o.first, o.tokens, o.assigned);
      c != 0)
    return c;
  if (node == o.node) return std::strong_ordering::equal;
  const int names = name->compare(*o.name);
  return names != 0 ? names <=> 0 : node <=> o.node;
}

// All nodes in the order of their keys at `now`: two orders merged.
class PrefillShortlist::InOrder {
 public:
  InOrder(const PrefillShortlist& list, Time now)
      : list_(list), now_(now), ticking_(list.ticking_.begin()), still_(list.still_.begin()) {}

  std::optional<uint32_t> next() {
    const bool t = ticking_ != list_.ticking_.end(), s = still_ != list_.still_.end();
    if (!t && !s) return std::nullopt;
    if (t && (!s || list_.key_at(ticking_->node, now_) < *still_)) return (ticking_++)->node;
    return (still_++)->node;
  }

 private:
  const PrefillShortlist& list_;
  Time now_;
  std::set<Key>::const_iterator ticking_, still_;
};

PrefillShortlist::PrefillShortlist(PolicyOptions options, std::vector<std::string> names)
    : options_(std::move(options)) {
  const std::string& p = options_.policy;
  by_ = p == "count"                              ? By::kRequests
        : p == "weighted"                         ? By::kTokens
        : p == "random" || p == "rr" || p == "p2c" ? By::kDraw
                                                  : By::kQueue;
  for (std::string& name : names) nodes_.push_back({std::move(name), {}});
}

PrefillShortlist::Key PrefillShortlist::key(uint32_t node, int64_t first) const {
  const Node& n = nodes_[node];
  return {first, n.standing.tokens, n.standing.assigned, &n.name, node};
}

PrefillShortlist::Key PrefillShortlist::still_key(uint32_t node) const {
  const Standing& s = nodes_[node].standing;
  return key(node, by_queue()                ? s.behind.count()
                   : by_ == By::kRequests ? static_cast<int64_t>(s.requests)
                                             : 0);
}

PrefillShortlist::Key PrefillShortlist::ticking_key(uint32_t node) const {
  const Standing& s = nodes_[node].standing;
  return key(node, (s.first_ends + s.behind).time_since_epoch().count());
}

PrefillShortlist::Key PrefillShortlist::key_at(uint32_t node, Time now) const {
  if (!by_queue()) return still_key(node);
  const Standing& s = nodes_[node].standing;
  return key(node, (std::max(s.first_ends - now, Duration{0}) + s.behind).count());
}

void PrefillShortlist::place(uint32_t node) {
  if (by_ == By::kDraw) return;
  Node& n = nodes_[node];
  if (!n.ticking) {
    still_.insert(still_key(node));
  } else {
    ticking_.insert(ticking_key(node));
    turns_.emplace(n.standing.first_ends, node);
  }
}

void PrefillShortlist::displace(uint32_t node) {
  if (by_ == By::kDraw) return;
  Node& n = nodes_[node];
  if (!n.ticking) {
    still_.erase(still_key(node));
  } else {
    ticking_.erase(ticking_key(node));
    turns_.erase({n.standing.first_ends, node});
  }
}

void PrefillShortlist::put(uint32_t node, const Standing& standing) {
  Node& n = nodes_[node];
  if (n.usable)
    displace(node);
  else
    usable_.insert(std::lower_bound(usable_.begin(), usable_.end(), node), node);
  n.usable = true;
  n.standing = standing;
  n.ticking = by_queue() && standing.first_ends > settled_;
  place(node);
}

void PrefillShortlist::drop(uint32_t node) {
  Node& n = nodes_[node];
  if (!n.usable) return;
  displace(node);
  n.usable = false;
  usable_.erase(std::lower_bound(usable_.begin(), usable_.end(), node));
}

void PrefillShortlist::settle(Time now) {
  settled_ = now;
  while (!turns_.empty() && turns_.begin()->first <= now) {
    const uint32_t node = turns_.begin()->second;
    displace(node);
    nodes_[node].ticking = false;
    place(node);
  }
}

// Of each length that is held the best placed node, those in no level and no list included.
void PrefillShortlist::best_holders(const Matches& matches, Time now,
                                    std::vector<Listed>& out) {
  struct Best {
    uint32_t length;
    std::optional<Key> key;
  };
  std::vector<Best> best;  // of the few
  const auto better = [&](std::optional<Key>& than, uint32_t node) {
    if (!nodes_[node].usable) return;
    if (const Key k = key_at(node, now); !than || k < *than) than = k;
  };
  ++picks_;
  for (const auto& [node, length] : matches.few) {
    nodes_[node].few = picks_;
    auto at = std::find_if(best.begin(), best.end(),
                           [n = length](const Best& b) { return b.length == n; });
    if (at == best.end()) at = best.insert(at, {length, std::nullopt});
    better(at->key, node);
  }
  // Levels of few nodes are looked at whole; the others' best are soon met in the order of queues.
  std::vector<bool> open(matches.levels.size() + 1, true);  // 0: nobody's
  size_t left = open.size();
  for (size_t i = 0; i < matches.levels.size(); ++i) {
    const size_t longer = i + 1 < matches.levels.size() ? matches.levels[i + 1].nodes : 0;
    if (matches.levels[i].nodes - longer > kLookedAt) continue;
    Best b{matches.levels[i].length, std::nullopt};
    matches.each_of_level(i, [&](HolderSet::Slot node) {
      if (nodes_[node].few != picks_) better(b.key, node);
      return false;
    });
    best.push_back(b);
    open[i + 1] = false;
    --left;
  }
  InOrder all(*this, now);
  for (auto node = all.next(); node && left > 0; node = all.next()) {
    const auto slot = static_cast<HolderSet::Slot>(*node);
    const auto at = static_cast<size_t>(matches.level_of(slot) + 1);
    if (!open[at] || nodes_[*node].few == picks_) continue;
    open[at] = false;
    --left;
    out.push_back({*node, true});
  }
  for (const Best& b : best)
    if (b.key) out.push_back({b.key->node, true});
}

std::optional<uint32_t> PrefillShortlist::drawn(const Ask& ask, Time now) const {
  if (usable_.empty()) return std::nullopt;
  const auto [a, b] = draw(options_, ask, usable_.size());
  const auto queue = [&](size_t at) {
    const Standing& s = nodes_[usable_[at]].standing;
    return std::max(s.first_ends - now, Duration{0}) + s.behind;
  };
  return usable_[queue(b) < queue(a) && options_.policy == "p2c" ? b : a];
}

std::vector<PrefillShortlist::Listed> PrefillShortlist::pick(const Matches& matches,
                                                             const Ask& ask, Time now) {
  settle(now);
  std::vector<Listed> out;
  const uint32_t most = matches.longest();
  const bool trivial = is_trivial(uint64_t{most} * ask.block_tokens, ask.tokens);
  const std::string& p = options_.policy;
  if (by_ == By::kDraw) {
    if (const auto node = drawn(ask, now)) out.push_back({*node, true});
  } else if (p == "weighted" || ((p == "kvcache" || p == "local") && !trivial)) {
    best_holders(matches, now, out);
  } else if (const auto first = InOrder(*this, now).next()) {
    out.push_back({*first, true});
  }
  if (const auto node = matches.any_of_longest())
    if (std::none_of(out.begin(), out.end(), [&](const Listed& l) { return l.node == *node; }))
      out.push_back({*node, false});
  std::sort(out.begin(), out.end());
  return out;
}

bool DecodeShortlist::Key::operator<(const Key& o) const {
  if (step_ms != o.step_ms) return step_ms < o.step_ms;
  if (requests != o.requests) return requests < o.requests;
  if (node == o.node) return false;
  const int names = name->compare(*o.name);
  return names != 0 ? names < 0 : node < o.node;
}

void DecodeShortlist::put(uint32_t node, uint64_t requests, uint64_t context_tokens,
                          int64_t free_tokens) {
  drop(node);
  Node& n = nodes_[node];
  n = {{cost_.step_ms(requests + 1, context_tokens), requests, &names_[node], node},
       free_tokens,
       true};
  order_.insert(n.key);
  free_.insert(free_tokens);
}

void DecodeShortlist::drop(uint32_t node) {
  Node& n = nodes_[node];
  if (!n.usable) return;
  n.usable = false;
  order_.erase(n.key);
  free_.erase(free_.find(n.free_tokens));
}

std::optional<uint32_t> DecodeShortlist::pick(uint64_t room_tokens) const {
  if (order_.empty()) return std::nullopt;
  const auto need = static_cast<int64_t>(room_tokens);
  if (*free_.rbegin() >= need)
    for (const Key& k : order_)
      if (nodes_[k.node].free_tokens >= need) return k.node;
  return order_.begin()->node;
}

}  // namespace mc::sched
