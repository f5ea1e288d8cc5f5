#include "sched/shortlist.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace mc::sched {

namespace {

// The rank of each name in alphabetical order.
std::vector<uint32_t> ranks(const std::vector<std::string>& names) {
  std::vector<uint32_t> order(names.size()), out(names.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return names[a] < names[b]; });
  for (uint32_t k = 0; k < order.size(); ++k) out[order[k]] = k;
  return out;
}

}  // namespace

// Merges the orders: walks all nodes by their keys at `now`, with or without the fresh ones.
class PrefillShortlist::InOrder {
 public:
  InOrder(const PrefillShortlist& list, Time now)
      : list_(list), now_(now), ticking_(list.ticking_), still_(list.still_), fresh_(list.fresh_) {}

  std::optional<uint32_t> next(bool with_fresh) {
    auto* still = &still_;
    auto s = still_.peek();
    if (const auto f = with_fresh ? fresh_.peek() : std::nullopt;
        f && (!s || list_.fresh_.key(*f) < list_.still_.key(*s))) {
      still = &fresh_;
      s = f;
    }
    const auto t = ticking_.peek();
    if (!t && !s) return std::nullopt;
    if (t && (!s || list_.key_at(*t, now_) < list_.key_at(*s, now_))) {
      ticking_.advance();
      return t;
    }
    still->advance();
    return s;
  }

 private:
  const PrefillShortlist& list_;
  Time now_;
  Tournament<Key>::Cursor ticking_, still_, fresh_;
};

PrefillShortlist::PrefillShortlist(PolicyOptions options, const std::vector<std::string>& names)
    : options_(std::move(options)),
      ticking_(names.size()),
      still_(names.size()),
      fresh_(names.size()),
      turns_(names.size()) {
  const std::string& p = options_.policy;
  by_ = p == "count"                               ? By::kRequests
        : p == "weighted"                          ? By::kTokens
        : p == "random" || p == "rr" || p == "p2c" ? By::kDraw
                                                   : By::kQueue;
  for (const uint32_t name_rank : ranks(names))
    nodes_.push_back({.name_rank = name_rank, .rank = {}});
  usable_bits_.resize((nodes_.size() + 63) / 64);
  fresh_bits_.resize(usable_bits_.size());
}

PrefillShortlist::Key PrefillShortlist::key(uint32_t node, int64_t first) const {
  const Node& n = nodes_[node];
  return {first, n.rank.tokens, n.rank.assigned, n.name_rank, node};
}

PrefillShortlist::Key PrefillShortlist::still_key(uint32_t node) const {
  const CandidateRank& s = nodes_[node].rank;
  return key(node, by_queue()             ? s.behind.count()
                   : by_ == By::kRequests ? static_cast<int64_t>(s.requests)
                                          : 0);
}

PrefillShortlist::Key PrefillShortlist::ticking_key(uint32_t node) const {
  const CandidateRank& s = nodes_[node].rank;
  return key(node, (s.first_ends + s.behind).time_since_epoch().count());
}

PrefillShortlist::Key PrefillShortlist::key_at(uint32_t node, Time now) const {
  if (!by_queue()) return still_key(node);
  const CandidateRank& s = nodes_[node].rank;
  return key(node, (std::max(s.first_ends - now, Duration{0}) + s.behind).count());
}

PrefillShortlist::Age PrefillShortlist::age_of(const CandidateRank& s) const {
  if (by_queue() && s.first_ends > settled_) return Age::kTicking;
  return s.assigned == 0 ? Age::kFresh : Age::kStill;
}

void PrefillShortlist::place(uint32_t node) {
  if (by_ == By::kDraw) return;
  const Node& n = nodes_[node];
  if (n.age == Age::kTicking) {
    ticking_.put(node, ticking_key(node));
    turns_.put(node, {n.rank.first_ends, node});
  } else if (n.age == Age::kStill) {
    still_.put(node, still_key(node));
  } else {
    fresh_.put(node, still_key(node));
    fresh_bits_[node / 64] |= uint64_t{1} << node % 64;
  }
}

void PrefillShortlist::displace(uint32_t node) {
  if (by_ == By::kDraw) return;
  const Age age = nodes_[node].age;
  if (age == Age::kTicking) {
    ticking_.erase(node);
    turns_.erase(node);
  } else if (age == Age::kStill) {
    still_.erase(node);
  } else {
    fresh_.erase(node);
    fresh_bits_[node / 64] &= ~(uint64_t{1} << node % 64);
  }
}

void PrefillShortlist::put(uint32_t node, const CandidateRank& rank) {
  Node& n = nodes_[node];
  const Age age = age_of(rank);
  if (!n.usable)
    usable_.insert(std::lower_bound(usable_.begin(), usable_.end(), node), node);
  else if (age != n.age)
    displace(node);
  usable_bits_[node / 64] |= uint64_t{1} << node % 64;
  n.usable = true;
  n.rank = rank;
  n.age = age;
  place(node);
}

void PrefillShortlist::drop(uint32_t node) {
  Node& n = nodes_[node];
  if (!n.usable) return;
  displace(node);
  n.usable = false;
  usable_bits_[node / 64] &= ~(uint64_t{1} << node % 64);
  usable_.erase(std::lower_bound(usable_.begin(), usable_.end(), node));
}

void PrefillShortlist::settle(Time now) {
  settled_ = now;
  while (!turns_.empty() && turns_.key(turns_.best()).first <= now) {
    const uint32_t node = turns_.best();
    displace(node);
    nodes_[node].age = age_of(nodes_[node].rank);
    place(node);
  }
}

bool PrefillShortlist::any_fresh(const Matches& matches, int at) const {
  for (size_t k = 0; k < fresh_bits_.size() && 64 * k < matches.slots; ++k)
    if (fresh_bits_[k] != 0 && (matches.word(at, k) & fresh_bits_[k]) != 0) return true;
  return false;
}

// Of nodes that hold equally much those that no other one beats, by rank and by link.
struct PrefillShortlist::Best {
  struct Placed {
    Key key;
    double congestion;
    bool exact;
    bool beats(const Key& other, double others) const {
      return exact && key < other && congestion <= others;
    }
  };
  std::vector<Placed> exact, bounds;  // bounds: beat nobody, and are compared when all are there

  void add(const Placed& p) {
    if (!p.exact) return bounds.push_back(p);
    if (beaten(p)) return;
    std::erase_if(exact, [&](const Placed& q) { return p.beats(q.key, q.congestion); });
    exact.push_back(p);
  }
  bool beaten(const Placed& p) const {
    return std::any_of(exact.begin(), exact.end(),
                       [&](const Placed& q) { return q.beats(p.key, p.congestion); });
  }
};

void PrefillShortlist::list(uint32_t node, bool usable, std::vector<Listed>& out) {
  if (std::exchange(nodes_[node].listed, picks_) != picks_) out.push_back({node, usable});
}

void PrefillShortlist::list(const Best& best, std::vector<Listed>& out) {
  for (const Best::Placed& p : best.exact) list(p.key.node, true, out);
  for (const Best::Placed& p : best.bounds)
    if (!best.beaten(p)) list(p.key.node, true, out);
}

void PrefillShortlist::add(uint32_t node, Time now, Best& to) const {
  const CandidateRank& rank = nodes_[node].rank;
  to.add({key_at(node, now), rank.link.factor(now), rank.exact});
}

// Compares all nodes of a level, but for those of the few.
PrefillShortlist::Best PrefillShortlist::best_of(const Matches& matches, int at, Time now) const {
  Best best;
  for (size_t k = 0; k < usable_bits_.size() && 64 * k < matches.slots; ++k)
    for (uint64_t left = matches.word(at, k) & usable_bits_[k]; left != 0; left &= left - 1) {
      const auto node = static_cast<uint32_t>(64 * k + static_cast<size_t>(std::countr_zero(left)));
      if (nodes_[node].few != picks_) add(node, now, best);
    }
  return best;
}

// Adds the best placed node of each length, also of length 0: nodes in no level and no list.
void PrefillShortlist::best_holders(const Matches& matches, Time now, std::vector<Listed>& out) {
  std::vector<std::pair<uint32_t, Best>> few;  // by length
  for (const auto& [node, length] : matches.few) {
    nodes_[node].few = picks_;
    auto at = std::find_if(few.begin(), few.end(),
                           [n = length](const auto& entry) { return entry.first == n; });
    if (at == few.end()) at = few.insert(at, {length, {}});
    if (nodes_[node].usable) add(node, now, at->second);
  }
  for (const auto& [length, best] : few) list(best, out);
  // Few nodes that hold equally much are all compared; the best of many comes early in the order.
  struct Open {
    bool is = false, fresh = false;        // fresh nodes are among them
    double congestion = Congestion::kMax;  // the least of those listed, of exact ranks
  };
  std::vector<Open> open(matches.levels.size() + 1);  // 0: nodes that hold nothing
  size_t left = 0;
  for (int at = -1; at < static_cast<int>(matches.levels.size()); ++at) {
    size_t nodes = 0;
    for (size_t k = 0; k < usable_bits_.size() && 64 * k < matches.slots && nodes <= kLookedAt; ++k)
      nodes += static_cast<size_t>(std::popcount(matches.word(at, k) & usable_bits_[k]));
    if (nodes <= kLookedAt) {
      list(best_of(matches, at, now), out);
    } else {
      open[static_cast<size_t>(at) + 1] = {true, any_fresh(matches, at)};
      ++left;
    }
  }
  InOrder all(*this, now);
  const auto to_fresh = [](const Open& o) { return o.is && o.fresh; };
  for (size_t steps = 0; left > 0 && steps < kSteps; ++steps) {
    const auto node = all.next(std::any_of(open.begin(), open.end(), to_fresh));
    if (!node) break;
    const auto at = static_cast<size_t>(matches.level_of(static_cast<HolderSet::Slot>(*node))) + 1;
    const CandidateRank& rank = nodes_[*node].rank;
    const double congestion = rank.link.factor(now);
    if (!open[at].is || nodes_[*node].few == picks_ || congestion >= open[at].congestion) continue;
    list(*node, true, out);
    if (!rank.exact) continue;
    open[at].congestion = congestion;
    if (congestion > 1) continue;
    open[at].is = false;
    --left;
  }
  for (size_t at = 0; at < open.size(); ++at)
    if (open[at].is) list(best_of(matches, static_cast<int>(at) - 1, now), out);
}

// Adds the best placed node, whatever it holds.
void PrefillShortlist::best_placed(Time now, std::vector<Listed>& out) {
  InOrder all(*this, now);
  double least = Congestion::kMax;
  size_t steps = 0;
  for (auto node = all.next(true); node; node = all.next(true)) {
    if (++steps > kSteps) {
      Best best;
      for (const uint32_t one : usable_) add(one, now, best);
      return list(best, out);
    }
    const CandidateRank& rank = nodes_[*node].rank;
    const double congestion = rank.link.factor(now);
    if (congestion >= least) continue;
    list(*node, true, out);
    if (rank.exact) least = congestion;
    if (least <= 1) return;
  }
}

// One of the nodes that hold the most, and of these one that is usable if there is any.
std::optional<uint32_t> PrefillShortlist::holds_most(const Matches& matches) const {
  const uint32_t most = matches.longest();
  std::optional<uint32_t> found;
  for (const auto& [node, length] : matches.few)
    if (length == most && (!found || nodes_[node].usable)) found = node;
  if (matches.levels.empty() || matches.levels.back().length < most) return found;
  if (found && nodes_[*found].usable) return found;
  const auto longest = static_cast<int>(matches.levels.size()) - 1;
  matches.each(longest, [&](Matches::Slot node) {
    const bool usable = nodes_[node].usable;
    if (!found || usable) found = node;
    return usable;
  });
  return found;
}

std::optional<uint32_t> PrefillShortlist::drawn(const Ask& ask, Time now) const {
  if (usable_.empty()) return std::nullopt;
  const auto [a, b] = draw(options_, ask, usable_.size());
  const auto queue = [&](size_t at) {
    const CandidateRank& s = nodes_[usable_[at]].rank;
    return std::max(s.first_ends - now, Duration{0}) + s.behind;
  };
  return usable_[queue(b) < queue(a) && options_.policy == "p2c" ? b : a];
}

std::vector<PrefillShortlist::Listed> PrefillShortlist::pick(const Matches& matches, const Ask& ask,
                                                             Time now, bool each_length) {
  settle(now);
  ++picks_;
  std::vector<Listed> out;
  const uint32_t most = matches.longest();
  const bool trivial = is_trivial(uint64_t{most} * ask.block_tokens, ask.tokens) && !each_length;
  const std::string& p = options_.policy;
  if (by_ == By::kDraw) {
    if (const auto node = drawn(ask, now)) list(*node, true, out);
  } else if (p == "weighted" || ((p == "kvcache" || p == "local") && !trivial)) {
    best_holders(matches, now, out);
  } else {
    best_placed(now, out);
  }
  if (const auto node = holds_most(matches)) list(*node, false, out);
  std::sort(out.begin(), out.end());
  return out;
}

DecodeShortlist::DecodeShortlist(const Cost& cost, const std::vector<std::string>& names)
    : cost_(cost), ranks_(ranks(names)), order_(names.size()), room_(names.size()) {}

void DecodeShortlist::put(uint32_t node, uint64_t requests, uint64_t context_tokens,
                          int64_t free_tokens) {
  usable_ += !order_.has(node);
  order_.put(node, {cost_.step_ms(requests + 1, context_tokens), requests, ranks_[node], node});
  room_.put(node, {-free_tokens, node});
}

void DecodeShortlist::drop(uint32_t node) {
  if (!order_.has(node)) return;
  --usable_;
  order_.erase(node);
  room_.erase(node);
}

std::optional<uint32_t> DecodeShortlist::pick(uint64_t room_tokens) const {
  if (usable_ == 0) return std::nullopt;
  const auto has_room = [&](uint32_t node) {
    return -room_.key(node).first >= static_cast<int64_t>(room_tokens);
  };
  const uint32_t first = order_.best();
  if (has_room(first) || !has_room(room_.best())) return first;
  for (Tournament<Key>::Cursor at(order_);; at.advance())
    if (has_room(*at.peek())) return at.peek();
}

}  // namespace mc::sched
