// What constrained output costs a token: the mask for the next one and following the one that was
// drawn, over made-up vocabularies of 32k and 128k tokens. Beside it each token of the vocabulary
// is tried on its own; `cold` are masks of a grammar that nobody asked for before, `kept` later
// answers of the same grammar. Times are of this thread's CPU.
//
// The vocabulary: all bytes, JSON's punctuation in the runs that tokenizers have, and words of
// which most begin with a space. The answers are drawn at random from what may come, with strings
// ended now and then.
#include <time.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "model/grammar/compile.h"
#include "model/grammar/masks.h"

namespace mc {
namespace {

using bench::Measured;
using namespace model::grammar;

constexpr const char* kSchema = R"({"type":"object","properties":{"name":{"type":"string"},
  "age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","maxLength":40},
  "tags":{"type":"array","items":{"type":"string"}},"home":{"type":"object","properties":
  {"street":{"type":"string"},"kind":{"enum":["flat","house","boat"]}},"required":["street"]}},
  "required":["name","age","tags","home"]})";

double thread_us() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

struct Vocabulary {
  explicit Vocabulary(size_t size) {
    Random random(1);
    for (int c = 1; c < 256; ++c) texts.emplace_back(1, static_cast<char>(c));
    for (const char* more : {"\":", "\": ", "\",", "\", \"", "{\"", "\"}", "}}", "]}", "],", "},",
                             "[\"", "\"]", ": \"", ", \"", "\n  ", "\n    ", " {", " [", "\\\""})
      texts.emplace_back(more);
    const std::string letters = "etaoinshrdlcumwfgypbvkjxqz";
    while (texts.size() < size) {
      std::string word = random.chance(0.6) ? " " : "";
      for (uint64_t n = 2 + random.below(8); n > 0; --n)
        word += letters[static_cast<size_t>(26 * random.uniform() * random.uniform())];
      if (random.chance(0.02)) word += random.chance(0.5) ? "\"" : "\",";
      texts.push_back(word);
    }
    tokens.assign(texts.begin(), texts.end());
    trie = std::make_shared<const TokenTrie>(tokens);
  }
  std::vector<std::string> texts;
  std::vector<std::string_view> tokens;
  std::shared_ptr<const TokenTrie> trie;
};

size_t draw(const TokenSet& allowed, const std::vector<std::string_view>& tokens, Random& random) {
  std::vector<size_t> ends, all;
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (!allowed.has(i)) continue;
    all.push_back(i);
    if (tokens[i].find('"') != std::string_view::npos) ends.push_back(i);
  }
  const auto& from = !ends.empty() && random.chance(0.15) ? ends : all;
  return from.empty() ? tokens.size() : from[random.below(from.size())];
}

// Microseconds a token, over some answers.
Result<double> answers(Masks& masks, const std::shared_ptr<const Automaton>& automaton,
                       const Vocabulary& v, size_t count, uint64_t seed) {
  Random random(seed);
  TokenSet allowed(v.tokens.size());
  double us = 0, steps = 0;
  for (size_t n = 0; n < count; ++n) {
    Matcher matcher(automaton);
    for (int i = 0; i < 200 && !matcher.over(); ++i, ++steps) {
      const double begun = thread_us();
      MC_TRY_(masks.after(matcher, allowed));
      us += thread_us() - begun;
      const size_t token = draw(allowed, v.tokens, random);
      if (token == v.tokens.size()) break;
      const double drawn = thread_us();
      MC_TRY(const bool fits, matcher.take(v.tokens[token]));
      us += thread_us() - drawn;
      if (!fits) return fail(Code::kInternal, "a token of the mask does not fit");
    }
  }
  return us / steps;
}

// Trying each token, at a few places of one answer.
Result<double> tried(const std::shared_ptr<const Automaton>& automaton, const Vocabulary& v) {
  const double begun = thread_us();
  size_t places = 0, fit = 0;
  for (const char* text : {"{", "{\"name\": \"ab"}) {
    Matcher matcher(automaton);
    MC_TRY(const bool fits, matcher.take(text));
    if (!fits) return fail(Code::kInternal, "the text does not fit");
    ++places;
    for (const std::string_view token : v.tokens) {
      Matcher next = matcher;
      MC_TRY(const bool takes, next.take(token));
      fit += takes ? 1 : 0;
    }
  }
  if (fit == 0) return fail(Code::kInternal, "no token fits");
  return (thread_us() - begun) / static_cast<double>(places);
}

Result<int> run(const bench::Options& o) {
  for (const size_t size : {size_t{32'000}, size_t{128'000}}) {
    const Vocabulary v(size);
    const std::string of = " of " + std::to_string(size / 1000) + "k";
    for (const bool schema : {true, false}) {
      const double begun = thread_us();
      MC_TRY(const auto automaton,
             compile(schema ? Form::kJsonSchema : Form::kJsonObject, schema ? kSchema : ""));
      std::fprintf(stderr, "masks: %s: %zu states in %.0f us\n", schema ? "a schema" : "any object",
                   automaton->states(), thread_us() - begun);
      Masks kept(automaton, v.trie);
      uint64_t seed = 0;
      MC_TRY_(answers(kept, automaton, v, 20, ++seed));
      const auto peer = [&]() -> Result<Measured> { return tried(automaton, v); };
      const std::string name = schema ? "schema" : "object";
      const size_t turns = o.quick ? 3 : 7;
      MC_TRY_(bench::compare(
          {"masks", name + " kept" + of, "us", "each token tried", 0, true}, turns,
          [&]() -> Result<Measured> {
            return answers(kept, automaton, v, o.quick ? 5 : 20, ++seed);
          },
          peer));
      MC_TRY_(bench::compare(
          {"masks", name + " cold" + of, "us", "each token tried", 0, true}, turns,
          [&]() -> Result<Measured> {
            Masks cold(automaton, v.trie);
            return answers(cold, automaton, v, 1, ++seed);
          },
          peer));
    }
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::bench::Options options;
  mc::Program program("masks_bench", "what constrained output costs a token");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
