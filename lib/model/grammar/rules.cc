#include "model/grammar/rules.h"

#include <algorithm>
#include <array>

namespace mc::model::grammar {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

struct Encoded {
  std::array<uint8_t, 4> bytes{};
  size_t size = 0;
};
Encoded encode(uint32_t c) {
  const auto rest = [](uint32_t v) { return static_cast<uint8_t>(0x80 | (v & 0x3F)); };
  if (c < 0x80) return {{static_cast<uint8_t>(c)}, 1};
  if (c < 0x800) return {{static_cast<uint8_t>(0xC0 | c >> 6), rest(c)}, 2};
  if (c < 0x10000) return {{static_cast<uint8_t>(0xE0 | c >> 12), rest(c >> 6), rest(c)}, 3};
  return {{static_cast<uint8_t>(0xF0 | c >> 18), rest(c >> 12), rest(c >> 6), rest(c)}, 4};
}

}  // namespace

Characters normal(Characters any) {
  std::sort(any.begin(), any.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  Characters joined;
  for (const Range& r : any) {
    if (r.first > r.last) continue;
    if (!joined.empty() && r.first <= uint64_t{joined.back().last} + 1)
      joined.back().last = std::max(joined.back().last, r.last);
    else
      joined.push_back(r);
  }
  Characters out;
  for (Range r : joined) {
    r.last = std::min(r.last, kLastCharacter);
    if (r.first < kFirstSurrogate) out.push_back({r.first, std::min(r.last, kFirstSurrogate - 1)});
    r.first = std::max(r.first, r.first < kFirstSurrogate ? kLastSurrogate + 1 : r.first);
    if (r.first >= kFirstSurrogate) r.first = std::max(r.first, kLastSurrogate + 1);
    if (r.first <= r.last) out.push_back(r);
  }
  return out;
}

Characters all_but(const Characters& set) {
  Characters out;
  uint32_t next = 0;
  for (const Range& r : normal(set)) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kLastCharacter) out.push_back({next, kLastCharacter});
  return normal(std::move(out));
}

Characters both(const Characters& a, const Characters& b) {
  Characters out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint32_t first = std::max(a[i].first, b[j].first), last = std::min(a[i].last, b[j].last);
    if (first <= last) out.push_back({first, last});
    if (a[i].last < b[j].last)
      ++i;
    else
      ++j;
  }
  return out;
}

Rules::Node Rules::add(Part part) {
  if (!full()) parts_.push_back(part);
  return static_cast<Node>(parts_.size() - 1);
}

Rules::Node Rules::list(Kind kind, std::span<const Node> parts) {
  if (parts.size() == 1) return parts[0];
  if (parts.empty()) return kind == Kind::kSequence ? empty() : never();
  if (full()) return add({});
  const auto first = static_cast<uint32_t>(children_.size());
  children_.insert(children_.end(), parts.begin(), parts.end());
  return add({kind, first, static_cast<uint32_t>(parts.size())});
}

Rules::Node Rules::text(std::string_view bytes) {
  if (bytes.empty()) return empty();
  if (full()) return add({});
  const auto first = static_cast<uint32_t>(texts_.size());
  texts_ += bytes;
  return add({Kind::kText, first, static_cast<uint32_t>(bytes.size())});
}

Rules::Node Rules::set(const ByteSet& bytes) {
  if (bytes.none()) return never();
  if (full()) return add({});
  sets_.push_back(bytes);
  return add({Kind::kSet, static_cast<uint32_t>(sets_.size() - 1)});
}

Rules::Node Rules::repeat(Node part, uint32_t least, uint32_t most) {
  if (least == 1 && most == 1) return part;
  if (most == 0) return empty();
  if (least > most) return never();
  if (full()) return add({});
  children_.push_back(part);
  return add({Kind::kRepeat, static_cast<uint32_t>(children_.size() - 1), 1, least, most});
}

Rules::Rule Rules::declare(std::string name) {
  rules_.emplace_back(std::move(name), never());
  return static_cast<Rule>(rules_.size() - 1);
}

Rules::Node Rules::named(std::string name, Node body) {
  const Rule rule = declare(std::move(name));
  define(rule, body);
  return call(rule);
}

Rules::Node Rules::texts(std::vector<std::string> any) {
  std::sort(any.begin(), any.end());
  any.erase(std::unique(any.begin(), any.end()), any.end());
  return sorted_texts(any, 0);
}

// Of texts that agree in their first `from` bytes.
Rules::Node Rules::sorted_texts(std::span<const std::string> some, size_t from) {
  if (some.empty()) return never();
  if (some.size() == 1) return text(std::string_view(some[0]).substr(from));
  const std::string &low = some.front(), &high = some.back();
  size_t same = from;
  while (same < low.size() && same < high.size() && low[same] == high[same]) ++same;
  std::vector<Node> all;
  size_t i = 0;
  if (some[0].size() == same) {
    all.push_back(empty());
    ++i;
  }
  while (i < some.size() && !full()) {
    size_t end = i;
    while (end < some.size() && some[end][same] == some[i][same]) ++end;
    all.push_back(sorted_texts(some.subspan(i, end - i), same));
    i = end;
  }
  return sequence({text(std::string_view(low).substr(from, same - from)), either(all)});
}

Rules::Node Rules::characters(const Characters& set) {
  ByteSet one;
  std::vector<Node> all;
  for (const Range& r : set) {
    for (uint32_t c = r.first; c <= std::min(r.last, 0x7Fu); ++c) one.set(c);
    for (const Range& of :
         {Range{0x80, 0x7FF}, Range{0x800, 0xFFFF}, Range{0x10000, kLastCharacter}})
      if (r.first <= of.last && r.last >= of.first)
        utf8(std::max(r.first, of.first), std::min(r.last, of.last), all);
  }
  if (one.any()) all.insert(all.begin(), this->set(one));
  return either(all);
}

// Characters of one length, over 1: as sequences of sets of bytes.
void Rules::utf8(uint32_t first, uint32_t last, std::vector<Node>& out) {
  // All continuation bytes after some place are free, or the range is cut so that they are.
  const size_t size = encode(first).size;
  for (size_t free = 1; free < size; ++free) {
    const uint32_t mask = (1u << (6 * free)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;  // they differ in these bytes alone
    if ((first & mask) != 0) {
      utf8(first, first | mask, out);
      return utf8((first | mask) + 1, last, out);
    }
    if ((last & mask) != mask) {
      utf8(first, (last & ~mask) - 1, out);
      return utf8(last & ~mask, last, out);
    }
  }
  const Encoded a = encode(first), b = encode(last);
  std::vector<Node> parts;
  for (size_t i = 0; i < size; ++i) {
    ByteSet bytes;
    for (unsigned v = a.bytes[i]; v <= b.bytes[i]; ++v) bytes.set(v);
    parts.push_back(set(bytes));
  }
  out.push_back(sequence(parts));
}

}  // namespace mc::model::grammar
