#include "serve/external/text_affinity.h"

#include <algorithm>

#include "base/hash.h"
#include "base/random.h"

namespace mc::serve {

std::vector<uint64_t> TextAffinity::pieces(std::string_view text, uint64_t seed) {
  std::vector<uint64_t> all;
  uint64_t hash = mix64(seed);
  for (size_t at = 0; at < text.size() && all.size() < kTextPiecesMax; at += kPieceBytes) {
    hash = mix64(hash ^ xxh3(text.substr(at, kPieceBytes)));
    all.push_back(hash);
  }
  return all;
}

void TextAffinity::sent(std::span<const uint64_t> pieces, uint64_t engine) {
  // From its end on: of a text that is too old the beginning is kept.
  for (size_t i = pieces.size(); i-- > 0;) {
    const auto [it, made] = pieces_.try_emplace(pieces[i]);
    Piece& p = it->second;
    if (made)
      p.age = ages_.insert(ages_.begin(), pieces[i]);
    else
      ages_.splice(ages_.begin(), ages_, p.age);
    const auto known = std::find(p.engines.begin(), p.engines.end(), engine);
    const auto last = known == p.engines.end() ? std::prev(known) : known;
    std::rotate(p.engines.begin(), last, std::next(last));
    p.engines.front() = engine;
  }
  while (pieces_.size() > pieces_max_) {
    pieces_.erase(ages_.back());
    ages_.pop_back();
  }
}

uint32_t TextAffinity::match(std::span<const uint64_t> pieces, uint64_t engine) const {
  uint32_t n = 0;
  for (const uint64_t piece : pieces) {
    const auto it = pieces_.find(piece);
    if (it == pieces_.end() || std::find(it->second.engines.begin(), it->second.engines.end(),
                                         engine) == it->second.engines.end())
      break;
    ++n;
  }
  return n;
}

}  // namespace mc::serve
