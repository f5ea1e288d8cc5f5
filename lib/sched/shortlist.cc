#include "sched/shortlist.h"

#include <algorithm>
#include <bit>

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

// Adds the best placed node of each length, also of length 0: nodes in no level and no list.
void PrefillShortlist::best_holders(const Matches& matches, Time now, std::vector<Listed>& out) {
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
  // Few nodes that hold equally much are all compared; the best of many comes early in the order.
  const auto look_at_all = [&](int at) {
    Best b{matches.level_length(at), std::nullopt};
    for (size_t k = 0; k < usable_bits_.size() && 64 * k < matches.slots; ++k)
      for (uint64_t left = matches.word(at, k) & usable_bits_[k]; left != 0; left &= left - 1) {
        const auto node =
            static_cast<uint32_t>(64 * k + static_cast<size_t>(std::countr_zero(left)));
        if (nodes_[node].few != picks_) better(b.key, node);
      }
    best.push_back(b);
  };
  enum : uint8_t { kClosed, kOpen, kOpenToFresh };       // the last: fresh nodes are among them
  std::vector<uint8_t> open(matches.levels.size() + 1);  // 0: nodes that hold nothing
  size_t left = 0;
  for (int at = -1; at < static_cast<int>(matches.levels.size()); ++at) {
    size_t nodes = 0;
    for (size_t k = 0; k < usable_bits_.size() && 64 * k < matches.slots && nodes <= kLookedAt; ++k)
      nodes += static_cast<size_t>(std::popcount(matches.word(at, k) & usable_bits_[k]));
    if (nodes <= kLookedAt) {
      look_at_all(at);
    } else {
      open[static_cast<size_t>(at) + 1] = any_fresh(matches, at) ? kOpenToFresh : kOpen;
      ++left;
    }
  }
  InOrder all(*this, now);
  for (size_t steps = 0; left > 0 && steps < kSteps; ++steps) {
    const auto node = all.next(std::find(open.begin(), open.end(), kOpenToFresh) != open.end());
    if (!node) break;
    const auto at = static_cast<size_t>(matches.level_of(static_cast<HolderSet::Slot>(*node))) + 1;
    if (open[at] == kClosed || nodes_[*node].few == picks_) continue;
    open[at] = kClosed;
    --left;
    out.push_back({*node, true});
  }
  for (size_t at = 0; at < open.size(); ++at)
    if (open[at] != kClosed) look_at_all(static_cast<int>(at) - 1);
  for (const Best& b : best)
    if (b.key) out.push_back({b.key->node, true});
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
                                                             Time now) {
  settle(now);
  std::vector<Listed> out;
  const uint32_t most = matches.longest();
  const bool trivial = is_trivial(uint64_t{most} * ask.block_tokens, ask.tokens);
  const std::string& p = options_.policy;
  if (by_ == By::kDraw) {
    if (const auto node = drawn(ask, now)) out.push_back({*node, true});
  } else if (p == "weighted" || ((p == "kvcache" || p == "local") && !trivial)) {
    best_holders(matches, now, out);
  } else if (const auto first = InOrder(*this, now).next(true)) {
    out.push_back({*first, true});
  }
  if (const auto node = matches.any_of_longest())
    if (std::none_of(out.begin(), out.end(), [&](const Listed& l) { return l.node == *node; }))
      out.push_back({*node, false});
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
