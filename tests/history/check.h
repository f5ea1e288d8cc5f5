// Checks that a history of puts, gets and removals keeps the store's promises (docs/store.md).
// Every put carries a unique value, so each get names the put it saw. A stored value may vanish at
// any time (evicted, its node is away) and return. A get may not see
//   - a value that no put had begun to write,
//   - an old value: one seen again after a removal, or a put or sight of another value, that began
//     after the old one was there and ended before the get began.
// That is linearizability of a register whose content may hide, for histories with unique values.
// It costs O(n log n).
//
// Thread: values. Pure.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace mc::history {

enum class Kind : uint8_t { kPut, kGet, kRemove };
// kDone: it happened. kMaybe: nobody knows whether, or when. kNot: it did not happen; a get that
// found nothing.
enum class Fate : uint8_t { kDone, kMaybe, kNot };

struct Op {
  Kind kind = Kind::kGet;
  Fate fate = Fate::kDone;
  std::string key{};
  uint64_t value = 0;  // of a put, or a get that is kDone; never 0
  int64_t start_ns = 0, end_ns = 0;
};

namespace detail {

// Something that shows that the key had this content (0: none) at a time within it.
struct Proof {
  int64_t start = 0, end = 0;
  uint64_t value = 0;
};

// Of the proofs from here to the end, by start: the earliest end, and that of another value.
struct Earliest {
  Proof first{0, INT64_MAX, 0}, other{0, INT64_MAX, 0};
  void add(const Proof& p) {
    if (p.value == first.value) {
      if (p.end < first.end) first = p;
    } else if (p.end < first.end) {
      other = first;
      first = p;
    } else if (p.end < other.end) {
      other = p;
    }
  }
  const Proof& unlike(uint64_t value) const { return first.value == value ? other : first; }
};

inline double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

inline void check_key(const std::string& key, const std::vector<const Op*>& ops,
                      std::vector<std::string>& wrong) {
  std::unordered_map<uint64_t, const Op*> puts;
  std::unordered_map<uint64_t, int64_t> there;  // value: by when it was
  std::vector<Proof> proofs;
  for (const Op* op : ops) {
    if (op->kind == Kind::kPut) puts[op->value] = op;
    if (op->fate != Fate::kDone) continue;
    const uint64_t value = op->kind == Kind::kRemove ? 0 : op->value;
    proofs.push_back({op->start_ns, op->end_ns, value});
    if (value == 0) continue;
    const auto [it, first] = there.emplace(value, op->end_ns);
    if (!first) it->second = std::min(it->second, op->end_ns);
  }
  std::sort(proofs.begin(), proofs.end(),
            [](const Proof& a, const Proof& b) { return a.start < b.start; });
  std::vector<Earliest> from(proofs.size() + 1);
  for (size_t i = proofs.size(); i-- > 0;) {
    from[i] = from[i + 1];
    from[i].add(proofs[i]);
  }
  for (const Op* op : ops) {
    if (op->kind != Kind::kGet || op->fate != Fate::kDone) continue;
    const auto put = puts.find(op->value);
    if (put == puts.end() || put->second->start_ns > op->end_ns) {
      wrong.push_back(strf("%s: a get at %.3f ms saw value %llu, which was not being put",
                           key.c_str(), ms(op->start_ns),
                           static_cast<unsigned long long>(op->value)));
      continue;
    }
    const int64_t since = there.at(op->value);
    const auto next = std::upper_bound(proofs.begin(), proofs.end(), since,
                                       [](int64_t t, const Proof& p) { return t < p.start; });
    const Proof& against = from[static_cast<size_t>(next - proofs.begin())].unlike(op->value);
    if (against.end >= op->start_ns) continue;
    wrong.push_back(strf(
        "%s: a get at %.3f to %.3f ms saw value %llu, put from %.3f and there by %.3f, after %s "
        "%llu at %.3f to %.3f",
        key.c_str(), ms(op->start_ns), ms(op->end_ns), static_cast<unsigned long long>(op->value),
        ms(put->second->start_ns), ms(since), against.value == 0 ? "a removal" : "value",
        static_cast<unsigned long long>(against.value), ms(against.start), ms(against.end)));
  }
}

}  // namespace detail

// What cannot have happened, for people; empty when all is well.
inline std::vector<std::string> check(const std::vector<Op>& ops) {
  std::map<std::string, std::vector<const Op*>> by_key;
  for (const Op& op : ops) by_key[op.key].push_back(&op);
  std::vector<std::string> wrong;
  for (const auto& [key, some] : by_key) detail::check_key(key, some, wrong);
  return wrong;
}

}  // namespace mc::history
