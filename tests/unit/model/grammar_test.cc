// Regular expressions, GBNF and choices: what they match, what is refused, and which tokens may
// come.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "model/grammar/compile.h"
#include "model/grammar/masks.h"

using namespace mc;
using namespace mc::model::grammar;

namespace {

std::shared_ptr<const Automaton> compiled(Form form, const std::string& text) {
  auto a = compile(form, text);
  REQUIRE_MESSAGE(a.has_value(), text << ": " << a.error().what);
  return *a;
}
bool matches(const std::shared_ptr<const Automaton>& a, std::string_view text) {
  Matcher m(a);
  const auto took = m.take(text);
  return took && *took && m.complete();
}
bool regex(const std::string& pattern, std::string_view text) {
  return matches(compiled(Form::kRegex, pattern), text);
}
std::string refusal(Form form, const std::string& text) {
  const auto a = compile(form, text);
  return a ? "" : a.error().what;
}
bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// The tokens that may come, by taking each.
TokenSet tried(const Matcher& m, const std::vector<std::string_view>& tokens) {
  TokenSet set(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    Matcher next = m;
    const auto took = next.take(tokens[i]);
    if (!tokens[i].empty() && took && *took) set.add(i);
  }
  return set;
}

}  // namespace

TEST_CASE("a regular expression matches the whole text") {
  CHECK(regex("a+b?", "aab"));
  CHECK(regex("a+b?", "a"));
  CHECK(!regex("a+b?", ""));
  CHECK(!regex("a+b?", "abb"));
  CHECK(regex("(yes|no)(!{2,3})?", "no!!"));
  CHECK(!regex("(yes|no)(!{2,3})?", "no!"));
  CHECK(regex("^[^a-c\\d]{2}$", "xé"));
  CHECK(!regex("^[^a-c\\d]{2}$", "x1"));
  CHECK(regex("\\w+\\s\\S*", "ab_1 ."));
  CHECK(regex("(?<year>\\d{4})-(?:a|b)", "2024-b"));
  CHECK(regex(".", "\xF0\x9F\x98\x80"));
  CHECK(!regex(".", "\n"));
  CHECK(!regex(".", "\xF0\x9F"));
  CHECK(regex("\\u00e9\\x41\\.", "éA."));
  CHECK(regex("[\\u{10000}-\\u{10FFFF}]", "\xF0\x90\x80\x80"));
  CHECK(!regex("[\\u{10000}-\\u{10FFFF}]", "é"));
  CHECK(regex("(a*)*b", "aaab"));
  CHECK(regex("a{0,3}", ""));
  CHECK(regex("x{", "x{"));
  CHECK(regex("[à-ü]{2}", "éà"));
}

TEST_CASE("what is no regular language, or wrong, is refused by its name and place") {
  CHECK(says(refusal(Form::kRegex, "(a)\\1"), "a reference back is not supported"));
  CHECK(says(refusal(Form::kRegex, "a(?=b)"), "at byte 3 of the pattern: lookahead"));
  CHECK(says(refusal(Form::kRegex, "a(?<!b)"), "lookbehind"));
  CHECK(says(refusal(Form::kRegex, "(?i)a"), "flags"));
  CHECK(says(refusal(Form::kRegex, "\\bword"), "\\b is not supported"));
  CHECK(says(refusal(Form::kRegex, "\\p{L}"), "\\p"));
  CHECK(says(refusal(Form::kRegex, "a**"), "repetition"));
  CHECK(says(refusal(Form::kRegex, "(a"), "'(' without ')'"));
  CHECK(says(refusal(Form::kRegex, "a)"), "')' without '('"));
  CHECK(says(refusal(Form::kRegex, "[b-a]"), "range"));
  CHECK(says(refusal(Form::kRegex, "a{3,2}"), "least is over its most"));
  CHECK(says(refusal(Form::kRegex, "a^b"), "^"));
  CHECK(says(refusal(Form::kRegex, "\xFF"), "UTF-8"));
}

TEST_CASE("work is bounded: what would be too large is refused") {
  CHECK(says(refusal(Form::kRegex, "((a{1000}){1000}){1000}"), "states"));
  CHECK(says(refusal(Form::kRegex, "a{1000000}"), "repetition over"));
  CHECK(says(refusal(Form::kRegex, std::string(10000, '(')), "nested deeper"));
  CHECK(says(refusal(Form::kRegex, std::string(kTextMax + 1, 'a')), "bytes"));
  CHECK(says(refusal(Form::kGbnf, "root ::= root \"a\" | \"a\""), "refers to itself"));
  CHECK(says(refusal(Form::kGbnf, "root ::= a root | \"b\"\na ::= \"\" | \"x\""), "rule 'root'"));
  CHECK(says(refusal(Form::kGbnf, "root ::= \"a\" root"), "no text of finite length"));
  CHECK(says(refusal(Form::kGbnf, "root ::= " + std::string(1000, '(')), "nested deeper"));
  // What has more and more meanings: it ends in an error, not in a stall.
  const auto a = compiled(Form::kGbnf, "root ::= s\ns ::= \"a\" s s | \"a\" s | \"a\"");
  Matcher m(a);
  Result<bool> took = true;
  for (int i = 0; i < 5000 && took && *took; ++i) took = m.take("a");
  CHECK((!took || *took));
}

TEST_CASE("GBNF: rules, comments, repetitions, and what is wrong in it") {
  const auto a = compiled(Form::kGbnf,
                          "# sums\n"
                          "root  ::= term (ws \"+\" ws term)* # more\n"
                          "term  ::= [0-9]+ |\n"
                          "          \"(\" root \")\"\n"
                          "ws ::= [ \\t]{0,2}\n");
  CHECK(matches(a, "1 + (2+33)"));
  CHECK(matches(a, "((((7))))"));
  CHECK(!matches(a, "1 +"));
  CHECK(!matches(a, "1   + 2"));
  CHECK(!matches(a, "(1"));
  CHECK(matches(compiled(Form::kGbnf, "root ::= [^\\n\"]* \"\\x41\\u00e9\" .?"), "xyAé"));
  CHECK(says(refusal(Form::kGbnf, "start: \"a\""), "Lark"));
  CHECK(says(refusal(Form::kGbnf, "root ::= other"), "no rule 'other'"));
  CHECK(says(refusal(Form::kGbnf, "rule ::= \"a\""), "no rule 'root'"));
  CHECK(says(refusal(Form::kGbnf, "root ::= \"a\"\nroot ::= \"b\""), "line 2"));
  CHECK(says(refusal(Form::kGbnf, "root ::= \"a"), "without its end"));
  CHECK(says(refusal(Form::kGbnf, "root ::= \"a\" %"), "'%'"));
}

TEST_CASE("GBNF: %json stands for the texts that a schema takes") {
  const auto a =
      compiled(Form::kGbnf,
               "root ::= \"<\" %json "
               "{\"type\":\"object\",\"properties\":{\"}\\\"\":{\"$ref\":\"#/$defs/n\"}},"
               "\"required\":[\"}\\\"\"],\"$defs\":{\"n\":{\"type\":\"integer\"}}} \">\" | other\n"
               "other ::= (%json\n {\"enum\":[\"a\",[]]}){2} # two of them\n");
  CHECK(matches(a, R"(<{"}\"":-3}>)"));
  CHECK(matches(a, "\"a\"[]"));
  CHECK(!matches(a, R"(<{}>)"));
  CHECK(!matches(a, R"(<{"}\"":"x"}>)"));
  CHECK(!matches(a, "\"a\""));
  CHECK(says(refusal(Form::kGbnf, "root ::= \"a\"\n  %json [1]"), "line 2"));
  CHECK(says(refusal(Form::kGbnf, "root ::= %json {\"a\":{}"), "%json"));
  CHECK(says(refusal(Form::kGbnf, "root ::= %json {\"if\":{}}"), "#/if"));
}

TEST_CASE("GBNF: a token that is no text is its own, and no letters are it") {
  const auto a = compiled(Form::kGbnf, "root ::= <[128]> \"x\"* <[5]>?");
  CHECK(matches(a, mark_bytes(128) + "xx" + mark_bytes(5)));
  CHECK(matches(a, mark_bytes(128)));
  CHECK(!matches(a, "x"));
  CHECK(!matches(a, mark_bytes(12) + "8"));
  CHECK(!matches(compiled(Form::kGbnf, "root ::= .*"), mark_bytes(5)));
  CHECK(says(refusal(Form::kGbnf, "root ::= <[]>"), "want <[N]>"));
  CHECK(says(refusal(Form::kGbnf, "root ::= <[5>"), "want <[N]>"));
  CHECK(says(refusal(Form::kGbnf, "root ::= <[99999999999]>"), "want <[N]>"));
}

TEST_CASE("a choice is one of some texts") {
  const auto a = compiled(Form::kChoice, R"(["red","redder","green"])");
  CHECK(matches(a, "red"));
  CHECK(matches(a, "redder"));
  CHECK(!matches(a, "redd"));
  CHECK(!matches(a, "blue"));
  CHECK(says(refusal(Form::kChoice, "[]"), "no array of texts"));
  CHECK(says(refusal(Form::kChoice, "[1]"), "no text"));
  Matcher m(a);
  CHECK(*m.take("red"));
  CHECK(m.complete());
  CHECK(!m.over());
  CHECK(*m.take("der"));
  CHECK(m.over());
}

TEST_CASE("masks: the tokens are those that a matcher takes, kept or not") {
  std::vector<std::string> texts;
  for (int c = 1; c < 256; ++c) texts.emplace_back(1, static_cast<char>(c));
  Random random(7);
  const std::string letters = "\"{}[]:, \n\\abtruefalsn019.-eE+é";
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (uint64_t n = 1 + random.below(5); n > 0; --n)
      text += letters[random.below(letters.size())];
    texts.push_back(text);
  }
  texts.emplace_back();  // ends a text: never in a mask
  texts.push_back("\"a\": ");
  texts.push_back("\"a\": ");  // two tokens of the same bytes
  texts.push_back("\"}]}");
  const std::vector<std::string_view> tokens(texts.begin(), texts.end());
  const auto trie = std::make_shared<const TokenTrie>(tokens);
  for (const auto& [form, text] : std::vector<std::pair<Form, std::string>>{
           {Form::kJsonObject, ""},
           {Form::kRegex, "(\"a\": [0-9e.]+(, )?)*|true.{2,9}"},
           {Form::kGbnf,
            "root ::= \"{\" root \"}\" | \"[\" (root \",\"?)* \"]\" | x\n"
            "x ::= \"\" | \"a\" x x?"},
           {Form::kJsonSchema, R"({"type":"array","items":{"anyOf":[{"type":"object","properties":
            {"a":{"type":"number"},"b":{"$ref":"#"}}},{"type":"string","maxLength":3}]}})"}}) {
    const std::string& grammar = text;
    CAPTURE(grammar);
    const auto automaton = compiled(form, text);
    Masks masks(automaton, trie);
    TokenSet set(tokens.size());
    for (int run = 0; run < 8; ++run) {
      Matcher m(automaton);
      for (int step = 0; step < 30; ++step) {
        REQUIRE(masks.after(m, set));
        const TokenSet want = tried(m, tokens);
        REQUIRE(std::ranges::equal(set.words(), want.words()));
        std::vector<size_t> may;
        for (size_t i = 0; i < tokens.size(); ++i)
          if (set.has(i)) may.push_back(i);
        CHECK((m.complete() || !may.empty()));  // a text can always be completed
        if (may.empty()) break;
        REQUIRE(*m.take(tokens[may[random.below(may.size())]]));
      }
    }
    CHECK(masks.counts().found > 0);
  }
}
