// What clients say of an answer's form, fuzzed: it is compiled, or refused with a reason, and what
// a mask lets through fits.
#include <memory>

#include "model/grammar/compile.h"
#include "model/grammar/masks.h"
#include "tests/fuzz/target.h"

namespace mc::fuzz {

using namespace model::grammar;

// The first byte is the form.
void run_grammar(std::string_view input) {
  if (input.empty()) return;
  const auto form = static_cast<Form>(input[0] % 6);
  const auto automaton = compile(form, std::string(input.substr(1)));
  if (!automaton) {
    MC_CHECK(!automaton.error().what.empty());
    return;
  }
  static constexpr std::string_view kTokens[] = {"{",   "\"", "a", "}",    "[",    "]", "1",
                                                 "\":", ",",  " ", "\xC3", "\xA9", "b", "\"}"};
  static const auto trie = std::make_shared<const TokenTrie>(kTokens);
  Masks masks(*automaton, trie);
  Matcher matcher(*automaton);
  TokenSet allowed(std::size(kTokens));
  for (size_t step = 0; step < 16; ++step) {
    if (!masks.after(matcher, allowed)) return;
    size_t chosen = 0;
    while (chosen < allowed.size() && !allowed.has((chosen + step) % allowed.size())) ++chosen;
    if (chosen == allowed.size()) return;
    const auto took = matcher.take(kTokens[(chosen + step) % allowed.size()]);
    if (!took) return;
    MC_CHECK(*took);
  }
}

std::vector<std::string_view> words_grammar() {
  return {"\"type\":",  "\"object\"", "\"properties\":", "\"$ref\":\"#\"", "\"anyOf\":[",
          "\"items\":", "\"enum\":[", "\"minimum\":",    "\"pattern\":",   "\"allOf\":[",
          "root ::= ",  "{1,3}",      "[^a-z]",          "(a|b)*",         "\"required\":["};
}

std::vector<std::string> seeds_grammar() {
  return {"\1",
          "\2{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3},"
          "\"b\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
          "\2{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a+$\"},{\"enum\":[1,null]}]}",
          "\2{\"allOf\":[{\"items\":{\"type\":\"null\"}},{\"maxItems\":3}]}",
          "\3(a|b)*[^c]{2,4}\\d",
          "\4[\"a\",\"ab\"]",
          "\5root ::= \"a\" root | x*\nx ::= [b-d]\n"};
}

}  // namespace mc::fuzz
