#include "model/grammar/matcher.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace mc::model::grammar {
namespace {

constexpr size_t kFew = 32;  // places that are compared one by one

uint64_t key_of(const Place& p) { return uint64_t{p.stack} << 32 | p.state; }

// What was seen already.
class Seen {
 public:
  bool add(const Place& p) {
    if (!many_.empty()) return many_.insert(key_of(p)).second;
    if (std::find(few_.begin(), few_.end(), p) != few_.end()) return false;
    few_.push_back(p);
    if (few_.size() > kFew)
      for (const Place& f : few_) many_.insert(key_of(f));
    return true;
  }
  size_t size() const { return std::max(few_.size(), many_.size()); }

 private:
  std::vector<Place> few_;
  std::unordered_set<uint64_t> many_;
};

}  // namespace

uint32_t Stacks::push(uint32_t below, uint32_t state) {
  const uint64_t key = uint64_t{below} << 32 | state;
  const auto it = ids_.find(key);
  if (it != ids_.end()) return it->second;
  if (nodes_.size() >= kMost) return kFull;
  const auto id = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({below, state});
  ids_.emplace(key, id);
  return id;
}

void Stacks::clear() {
  nodes_.resize(1);
  ids_.clear();
}

bool Places::close(const Automaton& automaton, Stacks& stacks, std::vector<Place> from) {
  at.clear();
  complete = false;
  Seen seen;
  while (!from.empty()) {
    Place p = from.back();
    from.pop_back();
    while (automaton.ends(p.state) && p.stack != Stacks::kBottom)
      p = {stacks.top(p.stack), stacks.below(p.stack)};
    if (!seen.add(p)) continue;
    if (seen.size() > 4 * kMost || at.size() > kMost) return false;
    if (automaton.ends(p.state)) {
      complete = true;
      continue;
    }
    bool takes = false;
    for (const Automaton::Edge& e : automaton.edges(p.state)) {
      if (e.take == Automaton::Take::kByte) takes = true;
      if (e.take == Automaton::Take::kNothing) from.push_back({e.to, p.stack});
      if (e.take != Automaton::Take::kRule) continue;
      const uint32_t back = automaton.ends(e.to) ? p.stack : stacks.push(p.stack, e.to);
      if (back == Stacks::kFull) return false;
      from.push_back({e.what, back});
    }
    if (takes) at.push_back(p);
  }
  std::sort(at.begin(), at.end());
  return true;
}

std::vector<Place> Places::after(const Automaton& automaton, uint8_t byte) const {
  std::vector<Place> next;
  for (const Place& p : at)
    for (const Automaton::Edge& e : automaton.edges(p.state))
      if (e.take == Automaton::Take::kByte && automaton.takes(e, byte))
        next.push_back({e.to, p.stack});
  return next;
}

Matcher::Matcher(std::shared_ptr<const Automaton> automaton) : automaton_(std::move(automaton)) {
  // A grammar that cannot begin within the limits takes nothing.
  if (!places_.close(*automaton_, stacks_, {{automaton_->start(), Stacks::kBottom}})) places_ = {};
}

Result<bool> Matcher::take(std::string_view bytes) {
  Places now = places_;
  for (const char c : bytes) {
    std::vector<Place> next = now.after(*automaton_, static_cast<uint8_t>(c));
    if (next.empty()) return false;
    if (!now.close(*automaton_, stacks_, std::move(next)))
      return fail(Code::kNoSpace,
                  "the text so far can be read in over %zu ways by the grammar, or is nested too "
                  "deep: make it less ambiguous",
                  Places::kMost);
  }
  places_ = std::move(now);
  return true;
}

}  // namespace mc::model::grammar
