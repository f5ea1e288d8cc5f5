// The prefix index at the size of a large cluster: 10 million blocks over 1000 instances (a tenth
// with --quick), on one core. Requests of 24 and of 512 blocks ask how much every instance holds;
// updates are what KV events do. Beside it, in turns, a radix tree of compressed edges with the
// holders at its nodes, filled with the same, and with the table from hash to node that a tree
// needs because events name blocks by nothing but their hashes. Both must give the same answers.
// Times are of this thread's CPU: one core's work, whatever else runs on the machine. The lookups
// are of prompts that are held whole, not at all, and to their half. Mixed operations are what a
// request of 24 blocks brings about: it is looked up, a node drops the end of another prompt block
// by block, and gets it back; each block is one operation.
//
// The blocks: sessions of 24 (three quarters of all blocks) and of 512, each behind one of 64
// shared starts of six blocks that every instance holds. Most sessions are held by one instance, a
// few by up to a hundred, each from the first block to a length of its own.
#include <malloc.h>
#include <time.h>

#include <array>
#include <memory>
#include <unordered_map>

#include "base/random.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "sched/prefix_index.h"

namespace mc {
namespace {

using bench::Measured;
using Slot = sched::PrefixIndex::Slot;

constexpr size_t kSlots = 1000, kShared = 6, kStarts = 64, kShort = 24, kLong = 512;

// Seconds of this thread on a CPU.
double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

size_t heap_bytes() {
  const struct mallinfo2 m = ::mallinfo2();
  return m.uordblks + m.hblkhd;
}

// What is cached where, computed from a session's number.
struct Population {
  uint64_t shorts = 0, longs = 0;  // sessions; the long ones come after the short
  uint64_t blocks = 0;

  explicit Population(uint64_t wanted) {
    shorts = wanted / 4 * 3 / (kShort - kShared);
    longs = wanted / 4 / (kLong - kShared);
    blocks = shorts * (kShort - kShared) + longs * (kLong - kShared) + kStarts * kShared;
  }
  uint64_t sessions() const { return shorts + longs; }
  size_t length(uint64_t session) const { return session < shorts ? kShort : kLong; }

  std::vector<uint64_t> tags(uint64_t session) const {
    std::vector<uint64_t> all(length(session));
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = i < kShared ? mix64((session % kStarts) << 32 | i)
                           : mix64(uint64_t{1} << 63 | session << 20 | i);
    return all;
  }
  // Who holds it, each up to a length; the first one all of it.
  std::vector<std::pair<Slot, size_t>> holders(uint64_t session) const {
    Random random(session * 2 + 1);
    const uint64_t kind = random.below(1000);
    const size_t n = kind < 700 ? 1 : kind < 920 ? 2 : kind < 980 ? 3 : kind < 998 ? 8 : 100;
    std::vector<std::pair<Slot, size_t>> all;
    for (size_t i = 0; i < n; ++i) {
      const size_t full = length(session);
      all.emplace_back(static_cast<Slot>((random.below(kSlots / n) + kSlots / n * i) % kSlots),
                       i == 0 ? full : kShared + 1 + random.below(full - kShared));
    }
    return all;
  }
};

// The baseline: a tree of runs of blocks, split where prompts part or a holder's part ends.
class RadixTree {
 public:
  void add(Slot slot, std::span<const uint64_t> tags) {
    Node* node = &root_;
    while (!tags.empty()) {
      auto& child = node->children[tags[0]];
      if (!child) {
        child = std::make_unique<Node>();
        child->run.assign(tags.begin(), tags.end());
        for (const uint64_t tag : tags) where_[tag] = child.get();
      } else if (const size_t same = common(*child, tags); same < child->run.size()) {
        split(*child, same);
      }
      hold(*child, slot);
      tags = tags.subspan(child->run.size());
      node = child.get();
    }
  }

  // As events tell it: a slot dropped these blocks, the end of what it held.
  void remove(Slot slot, std::span<const uint64_t> tags) {
    const Node* last = nullptr;
    for (const uint64_t tag : tags) {
      Node* node = where_.at(tag);
      if (node == last) continue;
      if (node->run[0] != tag) {
        const auto at = std::find(node->run.begin(), node->run.end(), tag) - node->run.begin();
        split(*node, static_cast<size_t>(at));
        node = where_.at(tag);
      }
      std::erase(node->holders, slot);
      last = node;
    }
  }

  std::vector<uint32_t> match(std::span<const uint64_t> tags) const {
    std::vector<uint32_t> length(kSlots);
    const Node* node = &root_;
    for (uint32_t depth = 0; depth < tags.size();) {
      const auto it = node->children.find(tags[depth]);
      if (it == node->children.end()) break;
      node = it->second.get();
      const auto same = static_cast<uint32_t>(common(*node, tags.subspan(depth)));
      bool any = false;
      for (const Slot s : node->holders)
        if (length[s] == depth) {
          length[s] = depth + same;
          any = true;
        }
      if (!any || same < node->run.size()) break;
      depth += same;
    }
    return length;
  }

 private:
  struct Node {
    std::vector<uint64_t> run;
    std::vector<Slot> holders;
    std::unordered_map<uint64_t, std::unique_ptr<Node>> children;
  };
  static size_t common(const Node& node, std::span<const uint64_t> tags) {
    const size_t n = std::min(node.run.size(), tags.size());
    size_t i = 0;
    while (i < n && node.run[i] == tags[i]) ++i;
    return i;
  }
  void split(Node& node, size_t at) {
    auto rest = std::make_unique<Node>();
    rest->run.assign(node.run.begin() + static_cast<ptrdiff_t>(at), node.run.end());
    rest->holders = node.holders;
    rest->children = std::move(node.children);
    for (const uint64_t tag : rest->run) where_[tag] = rest.get();
    node.run.resize(at);
    node.run.shrink_to_fit();
    node.children.clear();
    node.children[rest->run[0]] = std::move(rest);
  }
  static void hold(Node& node, Slot slot) {
    if (std::find(node.holders.begin(), node.holders.end(), slot) == node.holders.end())
      node.holders.push_back(slot);
  }
  Node root_;
  std::unordered_map<uint64_t, Node*> where_;
};

struct Scene {
  Population all;
  sched::PrefixIndex index{size_t{1} << 25};
  RadixTree tree;
  double index_bytes = 0, tree_bytes = 0;
  Random random{7};

  explicit Scene(uint64_t blocks) : all(blocks) {
    every_holder([&](Slot slot, std::span<const uint64_t> tags) { index.add(slot, tags); });
    const size_t before = heap_bytes();
    every_holder([&](Slot slot, std::span<const uint64_t> tags) { tree.add(slot, tags); });
    index_bytes = static_cast<double>(index.bytes());
    tree_bytes = static_cast<double>(heap_bytes() - before);
  }

  void every_holder(const std::function<void(Slot, std::span<const uint64_t>)>& each) const {
    for (uint64_t s = 0; s < kStarts; ++s) {
      const auto tags = all.tags(s);
      for (size_t slot = 0; slot < kSlots; ++slot)
        each(static_cast<Slot>(slot), std::span<const uint64_t>(tags).first(kShared));
    }
    for (uint64_t s = 0; s < all.sessions(); ++s) {
      const auto tags = all.tags(s);
      for (const auto& [slot, length] : all.holders(s))
        each(slot, std::span<const uint64_t>(tags).first(length));
    }
  }

  // As a cache tells of them, in one message each: the end goes first.
  void lose_and_get(Slot slot, std::span<const uint64_t> tags, size_t from) {
    std::vector<uint64_t> lost(tags.begin() + static_cast<ptrdiff_t>(from), tags.end());
    std::reverse(lost.begin(), lost.end());
    index.remove(slot, lost);
    index.add(slot, tags.subspan(from));
  }

  uint64_t any_session(bool longs) {
    return longs ? all.shorts + random.below(all.longs) : random.below(all.shorts);
  }

  struct Prompt {
    std::vector<uint64_t> tags;
    Slot holder;      // has it all
    uint32_t length;  // but for the end, which nobody has
  };
  // Of each prompt a part is cached.
  std::vector<Prompt> prompts(bool longs, size_t n, double held) {
    std::vector<Prompt> made(n);
    for (auto& [tags, holder, length] : made) {
      const uint64_t session = any_session(longs);
      holder = all.holders(session)[0].first;
      tags = all.tags(session);
      const auto from = static_cast<size_t>(held * static_cast<double>(tags.size()));
      length = static_cast<uint32_t>(from);
      for (size_t i = from; i < tags.size(); ++i) tags[i] = random.next();
    }
    return made;
  }

  // us a lookup in the mean of all.
  template <class Match>
  double lookup_us(const std::vector<Prompt>& prompts, Match match) {
    const double start = thread_seconds();
    for (const auto& prompt : prompts)
      if (match(prompt.tags)[prompt.holder] != prompt.length) return -1;
    return (thread_seconds() - start) * 1e6 / static_cast<double>(prompts.size());
  }

  // Block operations a second, of requests as at the top of this file.
  template <class Match, class Update>
  double mixed(size_t rounds, Match match, Update update) {
    const auto asked = prompts(false, rounds, 1);
    std::vector<std::pair<Slot, std::vector<uint64_t>>> plan;
    for (size_t i = 0; i < rounds; ++i) {
      const uint64_t s = any_session(false);
      plan.emplace_back(all.holders(s)[0].first, all.tags(s));
    }
    const double start = thread_seconds();
    for (size_t i = 0; i < rounds; ++i) {
      if (match(asked[i].tags)[asked[i].holder] < kShared) return -1;
      update(plan[i].first, plan[i].second, kShared + 4);
    }
    const double n = static_cast<double>(rounds * (kShort + 2 * (kShort - kShared - 4)));
    return n / (thread_seconds() - start);
  }

  // One request after another, each timed: the 99th percentile in us.
  template <class Match>
  double p99_us(bool longs, size_t requests, Match match) {
    std::vector<double> us(requests);
    for (double& t : us) {
      const auto tags = all.tags(any_session(longs));
      const double start = thread_seconds();
      const auto length = match(tags);
      t = (thread_seconds() - start) * 1e6;
      if (*std::max_element(length.begin(), length.end()) != tags.size()) return -1;
    }
    std::sort(us.begin(), us.end());
    return us[requests * 99 / 100];
  }

  // Instances lose the end of a session and get it back: block events a second.
  template <class Update>
  double updates(size_t rounds, Update update) {
    std::vector<std::pair<Slot, std::vector<uint64_t>>> plan;
    for (size_t i = 0; i < rounds; ++i) {
      const uint64_t s = any_session(false);
      plan.emplace_back(all.holders(s)[0].first, all.tags(s));
    }
    const double start = thread_seconds();
    for (const auto& [slot, tags] : plan) update(slot, tags, kShared + 4);
    const double n = static_cast<double>(rounds * 2 * (kShort - kShared - 4));
    return n / (thread_seconds() - start);
  }
};

// What a figure prints beside its ratio to the tree: an absolute target.
Result<> told(const char* name, const char* unit, double limit, bool less, size_t turns,
              const bench::Turn& ours, const bench::Turn& tree) {
  MC_TRY_(bench::compare({"prefix-index", name, unit, "radix tree", 0, less}, turns, ours, tree));
  const std::string against = strf("%g %s", limit, unit);
  return bench::compare({"prefix-index", name, unit, against, 1, less}, turns, ours,
                        [limit] { return Result<Measured>(limit); });
}

Result<> same_answers(Scene& scene) {
  for (size_t i = 0; i < 2000; ++i) {
    const auto tags = scene.all.tags(scene.any_session(i % 10 == 0));
    if (scene.index.match(tags, kSlots) != scene.tree.match(tags))
      return fail(Code::kInternal, "index and tree differ");
  }
  return {};
}

Result<> requests(Scene& scene, bool longs, double limit_us, const bench::Options& o) {
  const size_t n = (o.quick ? 20'000 : 100'000) / (longs ? 10 : 1);
  const auto ours = [&, longs, n]() -> Result<Measured> {
    const double us =
        scene.p99_us(longs, n, [&](const auto& t) { return scene.index.match(t, kSlots); });
    if (us < 0) return fail(Code::kInternal, "the index has lost a block");
    return Measured(us);
  };
  const auto tree = [&, longs, n]() -> Result<Measured> {
    return Measured(scene.p99_us(longs, n, [&](const auto& t) { return scene.tree.match(t); }));
  };
  return told(longs ? "p99 of 512-block requests" : "p99 of 24-block requests", "us", limit_us,
              true, o.turns(), ours, tree);
}

// Mean time of a lookup; a tree is the limit for those that are held whole.
Result<> lookups(Scene& scene, bool longs, double held, const bench::Options& o) {
  const auto asked = scene.prompts(longs, o.quick ? 500 : 2000, held);
  const auto timed = [&](const auto& match) -> Result<Measured> {
    const double us = scene.lookup_us(asked, match);
    if (us < 0) return fail(Code::kInternal, "a lookup found the wrong length");
    return Measured(us);
  };
  const std::string name = strf("lookup of %zu blocks, %s", longs ? kLong : kShort,
                                held == 1  ? "all held"
                                : held > 0 ? "half of them held"
                                           : "the first not held");
  return bench::compare(
      {"prefix-index", name, "us", "radix tree", 1, true}, o.turns(),
      [&] { return timed([&](const auto& t) { return scene.index.match(t, kSlots); }); },
      [&] { return timed([&](const auto& t) { return scene.tree.match(t); }); });
}

Result<> mixed(Scene& scene, const bench::Options& o) {
  const size_t rounds = o.quick ? 5'000 : 20'000;
  return told(
      "mixed block operations", "1/s", 1e7, false, o.turns(),
      [&]() -> Result<Measured> {
        return Measured(scene.mixed(
            rounds, [&](const auto& t) { return scene.index.match(t, kSlots); },
            [&](Slot slot, const auto& tags, size_t at) { scene.lose_and_get(slot, tags, at); }));
      },
      [&]() -> Result<Measured> {
        return Measured(scene.mixed(
            rounds, [&](const auto& t) { return scene.tree.match(t); },
            [&](Slot slot, const auto& tags, size_t at) {
              scene.tree.remove(slot, std::span<const uint64_t>(tags).subspan(at));
              scene.tree.add(slot, tags);
            }));
      });
}

// The worst there is: a long prompt that every instance holds to its end.
Result<> everywhere(const bench::Options& o) {
  sched::PrefixIndex index;
  std::vector<uint64_t> tags(kLong);
  for (size_t i = 0; i < kLong; ++i) tags[i] = mix64(i);
  for (size_t slot = 0; slot < kSlots; ++slot) {
    for (const uint64_t tag : tags) index.add(static_cast<Slot>(slot), tag);
  }
  const auto timed = [&](const auto& match) -> Result<Measured> {
    const double start = thread_seconds();
    for (int i = 0; i < 100; ++i)
      if (match()[kSlots - 1] != kLong) return fail(Code::kInternal, "a wrong length");
    return Measured((thread_seconds() - start) * 1e4);
  };
  return bench::compare(
      {"prefix-index", "512 blocks held by all", "us", "200 us", 1, true}, o.turns(),
      [&] { return timed([&] { return index.match(tags, kSlots); }); },
      [] { return Result<Measured>(200.0); });
}

Result<> rebuild(const bench::Options& o) {
  return bench::compare(
      {"prefix-index", "a million blocks put in", "s", "2 seconds", 1, true}, o.turns(),
      [&]() -> Result<Measured> {
        const double start = thread_seconds();
        sched::PrefixIndex index;
        for (uint64_t i = 0; i < 1'000'000; ++i) index.add(static_cast<Slot>(i % kSlots), mix64(i));
        if (index.blocks() != 1'000'000) return fail(Code::kInternal, "blocks are missing");
        return Measured((thread_seconds() - start));
      },
      [] { return Result<Measured>(2.0); });
}

Result<int> run(const bench::Options& o) {
  MC_TRY_(rebuild(o));
  MC_TRY_(everywhere(o));
  const auto scene = std::make_unique<Scene>(o.quick ? 1'000'000 : 10'000'000);
  std::fprintf(stderr, "prefix-index: %zu blocks over %zu instances\n", scene->index.blocks(),
               kSlots);
  if (scene->index.blocks() != scene->all.blocks)
    return fail(Code::kInternal, "blocks are missing");
  MC_TRY_(same_answers(*scene));
  const auto blocks = static_cast<double>(scene->index.blocks());
  MC_TRY_(told(
      "memory a block", "bytes", 24, true, 1,
      [&] { return Result<Measured>(scene->index_bytes / blocks); },
      [&] { return Result<Measured>(scene->tree_bytes / blocks); }));
  MC_TRY_(requests(*scene, false, 20, o));
  MC_TRY_(requests(*scene, true, 200, o));
  for (const bool longs : {false, true})
    for (const double held : {1.0, 0.0, 0.5}) MC_TRY_(lookups(*scene, longs, held, o));
  const size_t rounds = o.quick ? 5'000 : 20'000;
  MC_TRY_(told(
      "updates", "1/s", 1e6, false, o.turns(),
      [&]() -> Result<Measured> {
        return Measured(scene->updates(rounds, [&](Slot slot, const auto& tags, size_t at) {
          scene->lose_and_get(slot, tags, at);
        }));
      },
      [&]() -> Result<Measured> {
        return Measured(scene->updates(rounds, [&](Slot slot, const auto& tags, size_t at) {
          scene->tree.remove(slot, std::span<const uint64_t>(tags).subspan(at));
          scene->tree.add(slot, tags);
        }));
      }));
  MC_TRY_(mixed(*scene, o));
  MC_TRY_(same_answers(*scene));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("index_bench", "the prefix index against a radix tree");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
