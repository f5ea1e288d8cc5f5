#include "model/grammar/automaton.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

namespace mc::model::grammar {

class AutomatonBuilder {
 public:
  using Edge = Automaton::Edge;
  using Take = Automaton::Take;
  explicit AutomatonBuilder(const Rules& rules) : rules_(rules) {}

  Result<Automaton> run(Rules::Rule root) {
    for (Rules::Rule r = 0; r < rules_.rules(); ++r) {
      first_.push_back(state());
      last_.push_back(state());
    }
    for (Rules::Rule r = 0; r < rules_.rules() && !full(); ++r)
      add(rules_.body(r), first_[r], last_[r]);
    if (full())
      return fail(Code::kNoSpace, "over %zu states: ask for less, or for shorter repetitions",
                  Automaton::kStatesMax);
    cut_dead_ends();
    if (!alive_[first_[root]]) return fail(Code::kInvalid, "no text of finite length matches");
    MC_TRY_(check_left_recursion());
    return finish(root);
  }

 private:
  bool full() const { return out_.size() > Automaton::kStatesMax || rules_.full(); }
  uint32_t state() {
    out_.emplace_back();
    return static_cast<uint32_t>(out_.size() - 1);
  }
  void edge(uint32_t from, Take take, uint32_t what, uint32_t to) {
    out_[from].push_back({to, what, take});
  }
  uint32_t set_id(const ByteSet& set) {
    const auto [it, added] = set_ids_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
    if (added) sets_.push_back(set);
    return it->second;
  }

  void add(Rules::Node node, uint32_t from, uint32_t to) {
    using Kind = Rules::Kind;
    if (full()) return;
    const Rules::Part& p = rules_.part(node);
    switch (p.kind) {
      case Kind::kEmpty: return edge(from, Take::kNothing, 0, to);
      case Kind::kNever: return;
      case Kind::kSet: return edge(from, Take::kByte, set_id(rules_.set_of(p)), to);
      case Kind::kRule: return edge(from, Take::kRule, first_[p.first], to);
      case Kind::kEither:
        for (const Rules::Node child : rules_.children(p)) add(child, from, to);
        return;
      case Kind::kText: return add_text(rules_.text_of(p), from, to);
      case Kind::kRepeat: return add_repeat(p, from, to);
      case Kind::kSequence: {
        const auto children = rules_.children(p);
        for (size_t i = 0; i + 1 < children.size() && !full(); ++i) {
          const uint32_t next = state();
          add(children[i], from, next);
          from = next;
        }
        return add(children.back(), from, to);
      }
    }
  }
  void add_text(std::string_view text, uint32_t from, uint32_t to) {
    for (size_t i = 0; i < text.size() && !full(); ++i) {
      ByteSet one;
      one.set(static_cast<uint8_t>(text[i]));
      const uint32_t next = i + 1 == text.size() ? to : state();
      edge(from, Take::kByte, set_id(one), next);
      from = next;
    }
  }
  void add_repeat(const Rules::Part& p, uint32_t from, uint32_t to) {
    const Rules::Node child = rules_.children(p)[0];
    for (uint32_t i = 0; i < p.least && !full(); ++i) {
      const uint32_t next = state();
      add(child, from, next);
      from = next;
    }
    if (p.most == Rules::kNoEnd) {
      const uint32_t loop = state();  // of its own: other edges may lead to `from` and `to`
      edge(from, Take::kNothing, 0, loop);
      add(child, loop, loop);
      return edge(loop, Take::kNothing, 0, to);
    }
    for (uint32_t i = p.least; i < p.most && !full(); ++i) {
      edge(from, Take::kNothing, 0, to);
      const uint32_t next = state();
      add(child, from, next);
      from = next;
    }
    edge(from, Take::kNothing, 0, to);
  }

  // Finds which states can reach the end of their rule, backwards from all ends. A call can be made
  // once its rule's first state is alive.
  void cut_dead_ends() {
    struct Back {
      uint32_t from, rule;  // state 0 is no rule's last: it is the first of rule 0
    };
    std::vector<std::vector<Back>> into(out_.size());
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> callers(out_.size());
    for (uint32_t s = 0; s < out_.size(); ++s)
      for (const Edge& e : out_[s]) {
        into[e.to].push_back({s, e.take == Take::kRule ? e.what + 1 : 0});
        if (e.take == Take::kRule) callers[e.what].push_back({s, e.to});
      }
    alive_.assign(out_.size(), false);
    std::vector<uint32_t> work;
    const auto wake = [&](uint32_t s) {
      if (!alive_[s]) work.push_back(s);
      alive_[s] = true;
    };
    for (const uint32_t last : last_) wake(last);
    while (!work.empty()) {
      const uint32_t s = work.back();
      work.pop_back();
      for (const Back& b : into[s])
        if (b.rule == 0 || alive_[b.rule - 1]) wake(b.from);
      for (const auto& [from, to] : callers[s])
        if (alive_[to]) wake(from);
    }
    for (auto& edges : out_)
      std::erase_if(edges, [&](const Edge& e) {
        return !alive_[e.to] || (e.take == Take::kRule && !alive_[e.what]);
      });
  }

  // Which states end their rule without a byte, by a fixed point over the rules.
  void find_empty_ends() {
    empties_.assign(out_.size(), false);
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> into(out_.size());  // from, needs
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> callers(out_.size());
    for (uint32_t s = 0; s < out_.size(); ++s)
      for (const Edge& e : out_[s]) {
        if (e.take == Take::kNothing) into[e.to].push_back({s, 0});
        if (e.take != Take::kRule) continue;
        into[e.to].push_back({s, e.what + 1});
        callers[e.what].push_back({s, e.to});
      }
    std::vector<uint32_t> work;
    const auto wake = [&](uint32_t s) {
      if (!empties_[s]) work.push_back(s);
      empties_[s] = true;
    };
    for (const uint32_t last : last_) wake(last);
    while (!work.empty()) {
      const uint32_t s = work.back();
      work.pop_back();
      for (const auto& [from, needs] : into[s])
        if (needs == 0 || empties_[needs - 1]) wake(from);
      for (const auto& [from, to] : callers[s])
        if (empties_[to]) wake(from);
    }
  }

  // A rule that calls itself before a byte is taken would be called forever.
  Result<> check_left_recursion() {
    find_empty_ends();
    std::unordered_map<uint32_t, Rules::Rule> rule_of;
    for (Rules::Rule r = 0; r < first_.size(); ++r) rule_of[first_[r]] = r;
    std::vector<std::vector<Rules::Rule>> left(first_.size());
    for (Rules::Rule r = 0; r < first_.size(); ++r) {
      std::vector<uint32_t> work = {first_[r]};
      std::unordered_map<uint32_t, bool> seen;
      while (!work.empty()) {
        const uint32_t s = work.back();
        work.pop_back();
        if (std::exchange(seen[s], true)) continue;
        for (const Edge& e : out_[s]) {
          if (e.take == Take::kNothing) work.push_back(e.to);
          if (e.take != Take::kRule) continue;
          left[r].push_back(rule_of.at(e.what));
          if (empties_[e.what]) work.push_back(e.to);
        }
      }
    }
    return find_circle(left);
  }
  Result<> find_circle(const std::vector<std::vector<Rules::Rule>>& left) const {
    enum class Mark : uint8_t { kNew, kOpen, kDone };
    std::vector<Mark> marks(left.size(), Mark::kNew);
    for (Rules::Rule r = 0; r < left.size(); ++r) {
      if (marks[r] != Mark::kNew) continue;
      std::vector<std::pair<Rules::Rule, size_t>> path = {{r, 0}};
      marks[r] = Mark::kOpen;
      while (!path.empty()) {
        auto& [at, next] = path.back();
        if (next == left[at].size()) {
          marks[at] = Mark::kDone;
          path.pop_back();
          continue;
        }
        const Rules::Rule to = left[at][next++];
        if (marks[to] == Mark::kOpen)
          return fail(Code::kInvalid, "%s refers to itself before anything is written",
                      rules_.name(to).c_str());
        if (marks[to] == Mark::kNew) {
          marks[to] = Mark::kOpen;
          path.emplace_back(to, 0);
        }
      }
    }
    return {};
  }

  Automaton finish(Rules::Rule root) {
    Automaton a;
    a.start_ = first_[root];
    a.sets_ = std::move(sets_);
    for (const auto& edges : out_) {
      a.first_.push_back(static_cast<uint32_t>(a.edges_.size()));
      a.edges_.insert(a.edges_.end(), edges.begin(), edges.end());
    }
    a.first_.push_back(static_cast<uint32_t>(a.edges_.size()));
    a.ends_.assign(out_.size(), false);
    for (const uint32_t last : last_) a.ends_[last] = true;  // no edge leaves it
    // Backwards through what has one empty edge and no other.
    std::vector<std::vector<uint32_t>> into(out_.size());
    for (uint32_t s = 0; s < out_.size(); ++s)
      if (out_[s].size() == 1 && out_[s][0].take == Take::kNothing)
        into[out_[s][0].to].push_back(s);
    std::vector<uint32_t> work = last_;
    while (!work.empty()) {
      const uint32_t s = work.back();
      work.pop_back();
      for (const uint32_t from : into[s])
        if (!a.ends_[from]) {
          a.ends_[from] = true;
          work.push_back(from);
        }
    }
    std::map<std::vector<bool>, uint32_t> ids;
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::vector<bool> in;
      for (const ByteSet& set : a.sets_) in.push_back(set[byte]);
      const auto [it, added] = ids.try_emplace(std::move(in), a.classes());
      if (added) a.members_.push_back(static_cast<uint8_t>(byte));
      a.classes_[byte] = it->second;
    }
    return a;
  }

  struct SetHash {
    size_t operator()(const ByteSet& s) const { return std::hash<ByteSet>{}(s); }
  };
  const Rules& rules_;
  std::vector<std::vector<Edge>> out_;
  std::vector<uint32_t> first_, last_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t, SetHash> set_ids_;
  std::vector<bool> alive_, empties_;
};

Result<Automaton> Automaton::build(const Rules& rules, Rules::Rule root) {
  return AutomatonBuilder(rules).run(root);
}

}  // namespace mc::model::grammar
