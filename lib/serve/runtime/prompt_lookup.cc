#include "serve/runtime/prompt_lookup.h"

#include <algorithm>

#include "base/result.h"

namespace mc::serve {
namespace {

constexpr size_t kFirstGuesses = 4;
constexpr double kShareLearned = 0.3;

}  // namespace

PromptLookup::PromptLookup(uint32_t most)
    : most_(most), count_(std::min<size_t>(most, kFirstGuesses)) {
  MC_CHECK(most >= 1 && most <= kMost);
}

std::vector<int32_t> PromptLookup::guess(std::span<const int32_t> tokens, size_t limit) {
  const size_t n = tokens.size();
  if (n <= kShortest || limit == 0) return {};
  if (resting_ > 0) {
    --resting_;
    return {};
  }
  // An occurrence ends before `end`, and what followed it is at `end`.
  size_t best = 0, best_end = 0;
  for (size_t end = n - 1; end >= kShortest && best < kLongest; --end) {
    if (tokens[end - 1] != tokens[n - 1]) continue;
    const size_t most = std::min(end, kLongest);
    size_t same = 1;
    while (same < most && tokens[end - 1 - same] == tokens[n - 1 - same]) ++same;
    if (same <= best) continue;
    best = same;
    best_end = end;
  }
  if (best < kShortest) return {};
  // Where the occurrence overlaps the end, the text repeats itself: the guesses go on with that.
  std::vector<int32_t> guesses;
  const size_t wanted = std::min(count_, limit);
  for (size_t i = 0; i < wanted; ++i) guesses.push_back(tokens[best_end + i % (n - best_end)]);
  return guesses;
}

void PromptLookup::checked(size_t guessed, size_t accepted) {
  share_ += kShareLearned * (static_cast<double>(accepted) / static_cast<double>(guessed) - share_);
  count_ = std::clamp<size_t>(accepted == guessed ? 2 * guessed : accepted + 1, 1, most_);
  if (share_ >= kWorth) {
    if (accepted == guessed) rest_ = kRest;
    return;
  }
  resting_ = rest_;
  rest_ = std::min(2 * rest_, kRestMost);
  share_ = kWorth;  // the next guesses decide
}

}  // namespace mc::serve
