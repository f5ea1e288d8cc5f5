#include "model/tokens/charsmap.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/tokens/growth.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

constexpr size_t kBlobMax = 64u << 20, kGraphemeMax = 6;
constexpr uint32_t kTextAt = 0x7FFFFFFF;  // of a leaf

uint32_t label_of(uint32_t unit) { return unit & (0x80000000u | 0xFFu); }
size_t offset_of(uint32_t unit) { return size_t{unit >> 10} << ((unit & (1u << 9)) >> 6); }
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1u) != 0; }

}  // namespace

Result<Charsmap> Charsmap::read(std::string_view blob) {
  uint32_t bytes = 0;
  if (blob.size() > kBlobMax || blob.size() < sizeof bytes)
    return fail(Code::kCorrupt, "the table of characters has %zu bytes: want 4 to %zu", blob.size(),
                kBlobMax);
  std::memcpy(&bytes, blob.data(), sizeof bytes);
  blob.remove_prefix(sizeof bytes);
  if (bytes > blob.size() || bytes % sizeof(uint32_t) != 0 || bytes == 0)
    return fail(Code::kCorrupt, "the table of characters has a trie of %u bytes, %zu are there",
                bytes, blob.size());
  Charsmap map;
  map.units_.resize(bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), blob.data(), bytes);
  map.texts_ = blob.substr(bytes);
  map.grows_ = map.worst();
  if (map.grows_ > static_cast<double>(Growth::kMost))
    return fail(Code::kUnsupported,
                "the table of characters may make a text more than %zu times as long",
                Growth::kMost);
  return map;
}

Result<Charsmap> Charsmap::read_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string blob;
  uint32_t bits = 0;
  int have = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos)
      return fail(Code::kCorrupt, "the table of characters is not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    blob += static_cast<char>(bits >> have & 0xFF);
  }
  return read(blob);
}

// Level by level from the root, so that an entry is met first at its shortest.
double Charsmap::worst() const {
  // Of each base its units, one behind the other.
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> first(units_.size() + 256, kNone), next(units_.size(), kNone);
  for (uint32_t i = 0; i < units_.size(); ++i) {
    const uint32_t byte = label_of(units_[i]);
    if (byte == 0 || byte > 255) continue;
    const uint32_t base = i ^ byte;
    next[i] = first[base];
    first[base] = i;
  }
  std::vector<uint32_t> ends;  // of texts
  for (size_t i = 0; i < texts_.size(); ++i)
    if (texts_[i] == '\0') ends.push_back(static_cast<uint32_t>(i));
  ends.push_back(static_cast<uint32_t>(texts_.size()));
  const auto text_size = [&](size_t at) {
    return at < texts_.size() ? *std::lower_bound(ends.begin(), ends.end(), at) - at : 0;
  };
  double most = 1;
  std::vector<size_t> level, below;
  const auto visit = [&](size_t base) {
    if (base < first.size() && first[base] != kNone) below.push_back(base);
  };
  visit(offset_of(units_[0]));
  for (size_t size = 1; !below.empty(); ++size) {
    level.swap(below);
    below.clear();
    for (const size_t base : level)
      for (uint32_t i = std::exchange(first[base], kNone); i != kNone; i = next[i]) {
        const size_t leaf = i ^ offset_of(units_[i]);
        if (has_leaf(units_[i]) && leaf < units_.size())
          most = std::max(most, growth_of(size, text_size(units_[leaf] & kTextAt)));
        visit(leaf);
      }
  }
  return most;
}

std::optional<Charsmap::Entry> Charsmap::find(std::string_view text, bool longest) const {
  std::optional<Entry> found;
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_leaf(unit) || node >= units_.size()) continue;
    const size_t at = units_[node] & kTextAt;
    if (at >= texts_.size()) continue;
    const std::string_view rest = std::string_view(texts_).substr(at);
    found = Entry{i + 1, rest.substr(0, rest.find('\0'))};
    if (!longest) break;
  }
  return found;
}

std::string Charsmap::replace(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto entry = find(text, true);
    const size_t size = entry ? entry->size : first_character(text).size;
    out += entry ? entry->by : text.substr(0, size);
    text.remove_prefix(size);
  }
  return out;
}

std::string Charsmap::replace_graphemes(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::string_view cluster = text.substr(0, grapheme_size(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() < kGraphemeMax)
      if (const auto entry = find(cluster, false)) {
        out += entry->by;
        continue;
      }
    while (!cluster.empty()) {
      const std::string_view one = cluster.substr(0, first_character(cluster).size);
      const auto entry = find(one, false);
      out += entry ? entry->by : one;
      cluster.remove_prefix(one.size());
    }
  }
  return out;
}

}  // namespace mc::model
