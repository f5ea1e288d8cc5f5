#include "serve/protocol/json_text.h"

#include <doctest/doctest.h>

#include "base/random.h"

using namespace mc;
using namespace mc::serve;

namespace {

std::string changed(const std::string& text, const std::vector<JsonText::Change>& changes) {
  const auto j = JsonText::parse(text);
  REQUIRE_MESSAGE(j, j.error().what);
  return j->with(changes);
}

}  // namespace

TEST_CASE("members are found in a text, and what is not replaced stays byte for byte") {
  const std::string text = " { \"a\" :1e400 ,\"m\": \"x\\u0041\", \"l\":[1,{\"m\":\"]\"}] }\n";
  const auto j = JsonText::parse(text);
  REQUIRE(j);
  CHECK(j->find("a") == "1e400");
  CHECK(j->find("l") == "[1,{\"m\":\"]\"}]");
  CHECK(j->find_string("m") == "xA");
  CHECK_FALSE(j->find("none"));
  CHECK_FALSE(j->find_string("a"));
  CHECK(j->with({}) == text);
  CHECK(changed(text, {{"m", "\"y\""}}) ==
        " { \"a\" :1e400 ,\"m\": \"y\", \"l\":[1,{\"m\":\"]\"}] }\n");
  CHECK(changed(text, {{"none", std::nullopt}}) == text);
}

TEST_CASE("members are taken out and appended at any place") {
  CHECK(changed(R"({"a":1, "b":2, "c":3})", {{"a", std::nullopt}}) == R"({"b":2, "c":3})");
  CHECK(changed(R"({"a":1, "b":2, "c":3})", {{"b", std::nullopt}}) == R"({"a":1, "c":3})");
  CHECK(changed(R"({"a":1, "b":2, "c":3})", {{"c", std::nullopt}}) == R"({"a":1, "b":2})");
  CHECK(changed(R"({"a":1, "b":2})", {{"a", std::nullopt}, {"b", std::nullopt}}) == "{}");
  CHECK(changed("{}", {{"a", "1"}, {"b", "\"x\""}}) == R"({"a":1,"b":"x"})");
  CHECK(changed("{ }", {{"a", "1"}}) == R"({ "a":1})");
  CHECK(changed(R"({"a":1 })", {{"a", std::nullopt}, {"z", "2"}}) == R"({"z":2 })");
  CHECK(changed(R"({"a":null})", {{"a", "2"}}) == R"({"a":2})");
  // A name that is written with escapes is the same name.
  CHECK(changed(R"({"\u0061":1})", {{"a", "2"}}) == R"({"\u0061":2})");
}

TEST_CASE("a text that is no object, or says something twice, is refused") {
  for (const char* text :
       {"", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1}x", "{\"a\":[}",
        "{\"a\":\"x}", "{a:1}", "{\"a\":1 \"b\":2}", "{\"a\":[1}}", "{\"\\x\":1}", "{\"a\":\"\\"}) {
    CAPTURE(text);
    CHECK_FALSE(JsonText::parse(text));
  }
  CHECK(JsonText::parse(R"({"a":1,"\u0061":2})").error().what.find("'a' occurs twice") !=
        std::string::npos);
  CHECK_FALSE(JsonText::parse("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}"));
  std::string many = "{";
  for (int i = 0; i < 1100; ++i) many += "\"k" + std::to_string(i) + "\":1,";
  CHECK_FALSE(JsonText::parse(many + "\"z\":1}"));
}

TEST_CASE("a list of ids is read from its text, and nothing else is taken for one") {
  using Ids = std::vector<int32_t>;
  CHECK(parse_ids("[1,2]", 3) == Ids{1, 2});
  CHECK(parse_ids("[ 0 ,\n2147483647\t]", 1u << 31) == Ids{0, 2147483647});
  for (const char* text : {"[]",
                           "[ ]",
                           "[1,]",
                           "[,1]",
                           "[1 2]",
                           "[1",
                           "1]",
                           "",
                           "[",
                           "[01]",
                           "[-1]",
                           "[1.0]",
                           "[1e2]",
                           "[\"1\"]",
                           "[[1]]",
                           "[1],[2]",
                           "[1]]",
                           "[3]",
                           "[null]",
                           "[99999999999]",
                           "[18446744073709551617]"})
    CHECK_MESSAGE(!parse_ids(text, 3), text);
}

TEST_CASE("lists of ids of any length and form are read whole, wherever they end") {
  Random random(3);
  for (size_t round = 0; round < 400; ++round) {
    std::vector<int32_t> ids;
    std::string text = "[";
    for (size_t n = 1 + random.below(40); n > 0; --n) {
      ids.push_back(static_cast<int32_t>(random.below(1u << (1 + random.below(31)))));
      text += (ids.size() > 1 ? "," : "") + std::string(random.below(3), ' ') +
              std::to_string(ids.back()) + std::string(random.below(2), '\n');
    }
    text += "]";
    CHECK_MESSAGE(parse_ids(text, 1u << 31) == ids, text);
    // With any byte of it another, it is a list that is as good, or none.
    std::string wild = text;
    wild[random.below(wild.size())] = static_cast<char>(random.below(256));
    if (const auto read = parse_ids(wild, 1u << 31))
      CHECK_MESSAGE(wild.find_first_not_of("[]0123456789, \n\t\r") == std::string::npos, wild);
  }
  CHECK(!parse_ids("[1234567,:1234567]", 1u << 31));
  CHECK(!parse_ids("[1234567890123,1]", 1u << 31));
}

TEST_CASE("strings and brackets match wherever they lie in a long text") {
  for (size_t at = 0; at < 40; ++at) {
    const std::string before(at, 'x'), inner = before + "\\\"]}[{" + before + "\\\\";
    const std::string list = "[\"" + inner + "\",{\"a\":[" + before + "]}]";
    const auto j = JsonText::parse("{\"s\":\"" + inner + "\",\"l\":" + list + ",\"z\":1}");
    REQUIRE_MESSAGE(j, at);
    CHECK(j->find("s") == "\"" + inner + "\"");
    CHECK(j->find("l") == list);
    CHECK(j->find("z") == "1");
    CHECK_FALSE(JsonText::parse("{\"s\":\"" + inner + "\\\"}"));
    CHECK_FALSE(JsonText::parse("{\"l\":[" + before + "[\"" + inner + "\"}]}"));
  }
}
