#include "serve/runtime/prompt_lookup.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace mc::serve {
namespace prompt_lookup_test {
namespace {

using Tokens = std::vector<int32_t>;

Tokens tokens_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string after(PromptLookup& lookup, std::string_view text, size_t limit = 64) {
  const Tokens guesses = lookup.guess(tokens_of(text), limit);
  return {guesses.begin(), guesses.end()};
}
std::string after(std::string_view text, size_t limit = 64) {
  PromptLookup lookup(8);
  return after(lookup, text, limit);
}

TEST_CASE("the guesses are what followed the last tokens before") {
  CHECK(after("the quick brown fox. the qu") == "ick ");
  CHECK(after("abcdefg abc") == "defg");
  CHECK(after("abcdefg abc", 2) == "de");
  CHECK(after("abcdefg abc", 0) == "");
}

TEST_CASE("fewer than three tokens that occurred before give no guess") {
  CHECK(after("abXcd ab") == "");
  CHECK(after("") == "");
  CHECK(after("abc") == "");
  CHECK(after("abcd") == "");
}

TEST_CASE("the longest occurrence counts, then the latest") {
  CHECK(after("xxabcd1 ...abcd2 ....abc3 ....xxabcd") == "1 ..");
  CHECK(after("abcd1111 abcd2222 abcd") == "2222");
}

TEST_CASE("a text that repeats itself is guessed to go on so") {
  CHECK(after("xyxyxyxy") == "xyxy");
  CHECK(after("aaaa") == "aaaa");
  CHECK(after("abcabc") == "abca");
}

TEST_CASE("where all guesses come true their number doubles, up to the most") {
  PromptLookup lookup(10);
  const Tokens text(40, 7);
  for (const size_t want : {4u, 8u, 10u, 10u}) {
    CHECK(lookup.guess(text, 64).size() == want);
    lookup.checked(want, want);
  }
  lookup.checked(10, 5);
  CHECK(lookup.guess(text, 64).size() == 6);  // what came true, and one more
  CHECK(PromptLookup(2).guess(text, 64).size() == 2);
}

TEST_CASE("guesses that do not come true become rare, and come back where they do") {
  PromptLookup lookup(8);
  const Tokens text(40, 7);
  size_t guessed = 0;
  for (int step = 0; step < 2000; ++step)
    if (const size_t n = lookup.guess(text, 64).size(); n > 0) {
      guessed += n;
      lookup.checked(n, 0);
    }
  CHECK(guessed >= 7);
  CHECK(guessed < 25);  // rows of 2,000 steps
  size_t right = 0;
  for (int step = 0; step < 300; ++step)
    if (const size_t n = lookup.guess(text, 64).size(); n > 0) {
      right += n;
      lookup.checked(n, n);
    }
  CHECK(right > 8 * 40);  // it rests once more at most
  CHECK(lookup.guess(text, 64).size() == 8);
}

}  // namespace
}  // namespace prompt_lookup_test
}  // namespace mc::serve
