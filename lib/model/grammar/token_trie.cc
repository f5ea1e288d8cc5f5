#include "model/grammar/token_trie.h"

#include <algorithm>
#include <bit>

namespace mc::model::grammar {

void TokenSet::add(const TokenSet& other) {
  for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

bool TokenSet::none() const {
  return std::all_of(words_.begin(), words_.end(), [](uint64_t w) { return w == 0; });
}

size_t TokenSet::count() const {
  size_t n = 0;
  for (const uint64_t w : words_) n += static_cast<size_t>(std::popcount(w));
  return n;
}

TokenTrie::TokenTrie(std::span<const std::string_view> tokens) : vocab_(tokens.size()) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (!tokens[i].empty() && tokens[i].size() <= kLongest)
      order.push_back(static_cast<int32_t>(i));
  const auto text = [&](int32_t id) { return tokens[static_cast<size_t>(id)]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int c = text(a).compare(text(b));
    return c != 0 ? c < 0 : a < b;
  });
  const auto open = [&](uint8_t byte, size_t depth) {
    bytes_.push_back(byte);
    depths_.push_back(static_cast<uint16_t>(depth));
    ends_.push_back(0);
    first_.push_back(static_cast<uint32_t>(tokens_.size()));
  };
  std::vector<uint32_t> path = {0};  // the nodes to where we are
  open(0, 0);
  std::string_view before;
  for (const int32_t id : order) {
    const std::string_view now = text(id);
    size_t same = 0;
    while (same < before.size() && same < now.size() && before[same] == now[same]) ++same;
    for (; path.size() > same + 1; path.pop_back())
      ends_[path.back()] = static_cast<uint32_t>(bytes_.size());
    for (size_t i = same; i < now.size(); ++i) {
      path.push_back(static_cast<uint32_t>(bytes_.size()));
      open(static_cast<uint8_t>(now[i]), i + 1);
    }
    tokens_.push_back(id);
    before = now;
  }
  for (const uint32_t node : path) ends_[node] = static_cast<uint32_t>(bytes_.size());
  first_.push_back(static_cast<uint32_t>(tokens_.size()));
}

std::string mark_bytes(uint32_t token) { return '\xff' + std::to_string(token) + '\xff'; }

}  // namespace mc::model::grammar
