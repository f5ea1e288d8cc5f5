// Guesses how a text goes on: as it did after an earlier occurrence of its last tokens.
// An answer that quotes its prompt, or itself, is guessed this way without a second model. The
// longest occurrence counts, of kShortest to kLongest tokens; of equally long ones the latest.
//
//   for each step: guess(tokens, limit), a pass over them, checked(guessed, accepted)
//
// A guess costs a row of the pass. So their number doubles where all come true and falls to what
// came true where they do not; where fewer than kWorth of them come true, none is made for a while,
// which is longer each time.
//
// Thread: one owner. Pure. Source: Saxena, Prompt Lookup Decoding (2023); Leviathan et al. 2023
// (guesses checked in one pass).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mc::serve {

class PromptLookup {
 public:
  static constexpr size_t kShortest = 3, kLongest = 16;  // tokens that occur again
  static constexpr size_t kMost = 64;                    // guesses at a time, of any choice
  static constexpr double kWorth = 0.3;                  // share of guesses
  static constexpr uint32_t kRest = 8, kRestMost = 256;  // calls of guess() without any

  // `most` guesses at a time, 1 to kMost.
  explicit PromptLookup(uint32_t most);

  // Tokens that may come after `tokens`, `limit` at most. Empty: nothing occurred before, or it
  // does not pay now.
  std::vector<int32_t> guess(std::span<const int32_t> tokens, size_t limit);
  // So many of `guessed`, above 0, came true.
  void checked(size_t guessed, size_t accepted);

 private:
  const size_t most_;
  size_t count_;      // of the next guesses
  double share_ = 1;  // of guesses that come true, the last ones counting most
  uint32_t rest_ = kRest, resting_ = 0;
};

// What a sequence's next step checks.
struct Speculation {
  explicit Speculation(uint32_t most) : lookup(most) {}
  PromptLookup lookup;
  std::vector<int32_t> guesses;
};

}  // namespace mc::serve
