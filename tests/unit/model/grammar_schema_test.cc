// JSON schemas: which texts they allow, what is refused and where, and 200 random ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "model/forward/sampler.h"
#include "model/grammar/compile.h"
#include "model/grammar/masks.h"
#include "random_schema.h"
#include "schema_check.h"

using namespace mc;
using namespace mc::model::grammar;

namespace {

bool allows(const std::string& schema, std::string_view text) {
  const auto a = compile(Form::kJsonSchema, schema);
  REQUIRE_MESSAGE(a.has_value(), schema << ": " << a.error().what);
  Matcher m(*a);
  const auto took = m.take(text);
  return took && *took && m.complete();
}
std::string why_not(const std::string& schema) {
  const auto a = compile(Form::kJsonSchema, schema);
  return a ? "" : a.error().what;
}
bool names(const std::string& schema, std::string_view part) {
  const std::string why = why_not(schema);
  INFO(schema);
  INFO(why);
  return why.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an object has its members in their order; optional ones may be left out") {
  const std::string s =
      R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"},
      "c":{"type":"null"}},"required":["a"]})";
  CHECK(allows(s, R"({"b":1,"a":"x","c":null})"));
  CHECK(allows(s, "{\n  \"b\": -12,\n  \"a\": \"\"\n}"));
  CHECK(allows(s, R"({"a":"x"})"));
  CHECK(allows(s, R"({"a":"x","c":null})"));
  CHECK(!allows(s, R"({"b":1})"));
  CHECK(!allows(s, R"({"a":"x","b":1})"));
  CHECK(!allows(s, R"({"a":"x",})"));
  CHECK(!allows(s, R"({"a":"x","d":1})"));
  CHECK(allows(R"({"type":"object"})", R"({"any":[1,{"x":null}]})"));
  const std::string more =
      R"({"properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})";
  CHECK(allows(more, R"({"ab":1,"a":true,"abc":false,"é":true,"":true})"));
  CHECK(!allows(more, R"({"x":true,"ab":true})"));
  CHECK(!allows(more, R"({"x":1})"));
  CHECK(allows(R"({"type":"object","required":["z"]})", R"({"z":[],"y":0})"));
}

TEST_CASE("arrays, lengths, values and references") {
  CHECK(allows(R"({"items":{"type":"null"},"minItems":1,"maxItems":2})", "[null, null]"));
  CHECK(!allows(R"({"items":{"type":"null"},"minItems":1,"maxItems":2})", "[]"));
  CHECK(!allows(R"({"items":{"type":"null"},"minItems":1,"maxItems":2})", "[null,null,null]"));
  CHECK(allows(R"({"prefixItems":[{"type":"null"},true],"items":{"const":1}})", "[null,2,1,1]"));
  CHECK(allows(R"({"prefixItems":[{"type":"null"},true]})", "[null]"));
  CHECK(!allows(R"({"prefixItems":[{"type":"null"},true],"minItems":2})", "[null]"));
  CHECK(!allows(R"({"prefixItems":[{"type":"null"}],"maxItems":0})", "[null]"));
  CHECK(allows(R"({"type":"string","minLength":2,"maxLength":3})", R"("é\n")"));
  CHECK(!allows(R"({"type":"string","minLength":2,"maxLength":3})", R"("abcd")"));
  CHECK(allows(R"({"type":"string","maxLength":2.0})", R"("ab")"));
  CHECK(!allows(R"({"type":"string","maxLength":2.0})", R"("abc")"));
  CHECK(allows(R"({"type":"number","minimum":0,"exclusiveMaximum":1e-10})", "0.00000000005"));
  CHECK(!allows(R"({"type":"number","minimum":0,"exclusiveMaximum":1e-10})", "0.0000000001"));
  CHECK(!allows(R"({"type":"string"})", "\"\n\""));
  CHECK(!allows(R"({"type":"string"})", R"("\ud800")"));
  CHECK(allows(R"({"type":"string"})", R"("\ud83d\ude00")"));
  CHECK(allows(R"({"type":"string","pattern":"b+\"$"})", R"("aabb\"")"));
  CHECK(!allows(R"({"type":"string","pattern":"^b+"})", R"("abb")"));
  CHECK(allows(R"({"enum":[1,"a",{"x":[null]}]})", R"({"x":[null]})"));
  CHECK(!allows(R"({"enum":[1,"a"],"type":"string"})", "1"));
  CHECK(allows(R"({"type":["null","integer"]})", "null"));
  const std::string tree =
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":
      "integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["v"],
      "additionalProperties":false}}})";
  CHECK(allows(tree, R"({"v":1,"kids":[{"v":2},{"v":3,"kids":[]}]})"));
  CHECK(!allows(tree, R"({"v":1,"kids":[{}]})"));
  CHECK(allows(R"({"allOf":[{"properties":{"a":{"type":"number"}}},{"properties":{"b":true,
      "a":{"minimum":0}},"required":["a"]}]})",
               R"({"a":0.5,"b":[]})"));
  CHECK(allows(R"({"type":"object","properties":{"k":true},"anyOf":[{"required":["k"]},
      {"properties":{"l":{"type":"null"}},"required":["l"]}]})",
               R"({"l":null})"));
  CHECK(allows(R"({"oneOf":[{"type":"string"},{"type":"integer"}]})", "12"));
  CHECK(allows(R"({"type":"string","format":"date"})", R"("2024-02-28")"));
  CHECK(!allows(R"({"type":"string","format":"date"})", R"("2024-02-31")"));
  CHECK(allows(R"({"format":"date-time"})", R"("2024-12-31T23:59:59.5Z")"));
  CHECK(allows(R"({"format":"ipv4"})", R"("255.0.10.1")"));
  CHECK(!allows(R"({"format":"ipv4"})", R"("256.0.10.1")"));
  CHECK(allows(R"({"format":"email"})", R"("a.b@c.de")"));
}

TEST_CASE("numbers stay within their bounds") {
  Random random(3);
  for (int run = 0; run < 300; ++run) {
    const bool whole = random.chance(0.5);
    const double scale = random.chance(0.3) ? 1 : 100;
    const auto draw = [&] {
      const double v = std::round(random.uniform(-30, 30) * scale) / scale;
      return random.chance(0.2) ? 0.0 : random.chance(0.3) ? std::round(v) : v;
    };
    Json s = {{"type", whole ? "integer" : "number"}};
    double low = draw(), high = draw();
    if (low > high) std::swap(low, high);
    const bool has_low = random.chance(0.8), has_high = random.chance(0.8);
    if (has_low) s[random.chance(0.3) ? "exclusiveMinimum" : "minimum"] = low;
    if (has_high) s[random.chance(0.3) ? "exclusiveMaximum" : "maximum"] = high;
    const auto a = compile(Form::kJsonSchema, dump_json(s));
    CAPTURE(dump_json(s));
    const test::SchemaCheck check(s);
    for (int i = 0; i < 60; ++i) {
      Json v = random.chance(0.3) ? Json(std::round(draw())) : Json(draw());
      if (random.chance(0.3)) v = random.chance(0.5) ? low : high;
      if (v.get<double>() == 0) v = 0.0;
      if (whole && std::round(v.get<double>()) == v.get<double>()) v = static_cast<int64_t>(v);
      if (whole && !v.is_number_integer()) continue;
      std::string text = dump_json(v);
      if (text.ends_with(".0")) text.resize(text.size() - 2);
      CAPTURE(text);
      bool allowed = false;
      if (a) {
        Matcher m(*a);
        allowed = *m.take(text) && m.complete();
      }
      REQUIRE(allowed == check.fits(*parse_json(text)));
    }
  }
}

TEST_CASE("multiples, distinct elements, members by pattern, and what values are not") {
  for (const int of : {2, 3, 7, 10, 128}) {
    const auto a = compile(Form::kJsonSchema, strf(R"({"multipleOf":%d})", of));
    REQUIRE(a);
    for (int n = -300; n <= 300; ++n) {
      Matcher m(*a);
      const auto took = m.take(std::to_string(n));
      CHECK_MESSAGE((took && *took && m.complete()) == (n % of == 0), n);
    }
  }
  CHECK(!allows(R"({"multipleOf":7})", "07"));
  CHECK(!allows(R"({"multipleOf":7})", "-0"));
  CHECK(!allows(R"({"multipleOf":7,"minimum":0})", "-7"));
  CHECK(allows(R"({"multipleOf":7,"minimum":0})", "0"));
  CHECK(!allows(R"({"multipleOf":7,"exclusiveMinimum":0})", "0"));
  CHECK(allows(R"({"multipleOf":7,"exclusiveMinimum":0})", "999999999999"));
  CHECK(allows(R"({"multipleOf":0.01,"minimum":1,"maximum":2})", "2"));
  for (int n = -40; n <= 40; ++n) {
    CHECK(allows(R"({"multipleOf":5,"minimum":-12.5,"exclusiveMaximum":20})", std::to_string(n)) ==
          (n % 5 == 0 && n >= -12 && n < 20));
    CHECK(allows(R"({"multipleOf":500,"exclusiveMinimum":-500,"maximum":0})", std::to_string(n)) ==
          (n == 0));
  }

  const std::string unique =
      R"({"uniqueItems":true,"items":{"enum":["a",1,[],"a"]},"minItems":1,"maxItems":2})";
  for (const char* text : {R"(["a"])", "[1]", R"(["a", 1])", R"(["a",[]])", "[1,[]]"})
    CHECK_MESSAGE(allows(unique, text), text);
  for (const char* text : {"[]", R"(["a","a"])", R"(["a",1,[]])", "[1,1]", R"(["b"])"})
    CHECK_MESSAGE(!allows(unique, text), text);
  CHECK(allows(R"({"uniqueItems":true,"maxItems":1})", R"([{"a":1}])"));

  const std::string pattern = R"({"patternProperties":{"^x-":{"type":"integer"}}})";
  CHECK(allows(pattern, R"({"x-a":1,"x-\"":2})"));
  CHECK(allows(pattern, "{}"));
  CHECK(!allows(pattern, R"({"x-a":"1"})"));
  CHECK(!allows(pattern, R"({"y":1})"));
  const std::string both =
      R"({"properties":{"ab":{"minimum":3},"b":{"type":"null"}},"required":["bb"],
      "patternProperties":{"^a":{"type":"integer"},"bb$":{"const":7}},
      "additionalProperties":false})";
  CHECK(allows(both, R"({"ab":3,"b":null,"bb":7})"));
  CHECK(!allows(both, R"({"ab":2,"bb":7})"));
  CHECK(!allows(both, R"({"ab":3.5,"bb":7})"));
  CHECK(!allows(both, R"({"bb":8})"));
  CHECK(!allows(both, R"({"ab":3})"));

  CHECK(allows(R"({"not":{"type":["object","array"]}})", "1.5"));
  CHECK(!allows(R"({"not":{"type":["object","array"]}})", "[]"));
  CHECK(!allows(R"({"type":["integer","null"],"not":{"type":"number"}})", "1"));
  CHECK(allows(R"({"enum":["a","b",1],"not":{"const":"b"}})", "1"));
  CHECK(!allows(R"({"enum":["a","b",1],"not":{"const":"b"}})", "\"b\""));
  CHECK(allows(R"({"type":"string","not":{"enum":[1,null]}})", "\"b\""));
  CHECK(allows(R"({"not":{"required":["a"]}})", R"({"b":1})"));
  CHECK(!allows(R"({"not":{"required":["a"]}})", R"({"b":1,"a":1})"));
  CHECK(!allows(R"({"not":{"required":["a"]}})", "1"));
  CHECK(allows(R"({"not":false,"const":1})", "1"));
}

TEST_CASE("an object has as many members as minProperties wants, or the schema is refused") {
  CHECK(!allows(R"({"type":"object","minProperties":1})", "{ }"));
  CHECK(!allows(R"({"type":"object","minProperties":1})", "{}"));
  CHECK(allows(R"({"type":"object","minProperties":1})", R"({"a":1})"));
  CHECK(allows(R"({"type":"object","minProperties":1})", R"({"a":1,"b":2})"));
  CHECK(allows(R"({"type":"object","minProperties":0})", "{}"));
  CHECK(allows(R"({"type":"string","minProperties":9})", R"("")"));
  CHECK(!allows(R"({"minProperties":1})", "{}"));
  const std::string two = R"({"properties":{"a":{"const":1},"b":{"const":2}},"minProperties":1)";
  CHECK(!allows(two + "}", "{}"));
  for (const char* const some : {R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"})
    CHECK(allows(two + "}", some));
  CHECK(allows(two + R"(,"additionalProperties":true})", R"({"c":3})"));
  CHECK(!allows(two + R"(,"additionalProperties":true})", "{}"));
  const std::string needed =
      R"({"properties":{"a":{"const":1},"b":{"const":2}},"required":["a","b"],"minProperties":2})";
  CHECK(allows(needed, R"({"a":1,"b":2})"));
  CHECK(!allows(needed, R"({"a":1})"));
  const std::string pattern = R"({"patternProperties":{"^x":{"const":1}},"minProperties":1})";
  CHECK(!allows(pattern, "{}"));
  CHECK(allows(pattern, R"({"x":1})"));
  CHECK(!allows(R"({"allOf":[{"type":"object"},{"minProperties":1}]})", "{}"));
  CHECK(names(R"({"type":"object","minProperties":2})", "#/minProperties is not supported"));
  CHECK(names(R"({"type":"object","properties":{"a":true},"required":["a"],"minProperties":2})",
              "#/minProperties is not supported"));
  CHECK(names(R"({"items":{"type":"object","minProperties":-1}})", "#/items/minProperties is not"));
  CHECK(names(R"({"type":"object","maxProperties":1})", "#/maxProperties is not supported"));
  CHECK(names(R"({"type":"object","additionalProperties":false,"minProperties":1})",
              "no text of finite length"));
}

TEST_CASE("what is not supported is named with its path, and nothing is left out in silence") {
  CHECK(names(R"({"properties":{"a":{"not":{"minimum":3}}}})", "#/properties/a/not is not"));
  CHECK(names(R"({"not":{"const":1}})", "#/not is not"));
  for (const char* wrong : {"5", R"("x")", "[]"})
    CHECK(names(std::string(R"({"not":{"required":["a"]},"properties":)") + wrong + "}",
                "#/properties is not an object"));
  CHECK(names(R"({"type":"number","not":{"type":"integer"}})", "#/not is not"));
  CHECK(names(R"({"not":{}})", "no text of finite length"));
  CHECK(names(R"({"enum":[1,2],"not":{"enum":[1,2,3]}})", "no text of finite length"));
  CHECK(names(R"({"items":{"if":{}}})", "#/items/if is not supported"));
  CHECK(names(R"({"patternProperties":{"a":true,"b":true}})", "#/patternProperties is not"));
  CHECK(names(R"s({"patternProperties":{"(?=a)":true}})s", "#/patternProperties: at byte 2"));
  CHECK(names(R"({"multipleOf":2.5})", "#/multipleOf is not"));
  CHECK(names(R"({"multipleOf":3,"minimum":1})", "#/multipleOf is not"));
  CHECK(names(R"({"multipleOf":129})", "#/multipleOf is not"));
  CHECK(names(R"({"multipleOf":0.1,"minimum":0.05,"maximum":0.35})",
              "#/multipleOf is not supported where no whole number is within the bounds"));
  CHECK(names(R"({"multipleOf":0.5,"minimum":0.1,"maximum":0.4})", "no text of finite length"));
  CHECK(names(R"({"minimum":-9007199254740993})",
              "#/minimum: -9007199254740993 is no bound that is supported: want 15 digits"));
  CHECK(names(R"({"minimum":1000000000000000.0})",
              "#/minimum: 1000000000000000 is no bound that is supported: want 15 digits"));
  CHECK(names(R"({"maxLength":2.5})", "#/maxLength is not a whole number of 0 or more"));
  CHECK(names(R"({"multipleOf":0})", "#/multipleOf is not a number above 0"));
  CHECK(names(R"({"uniqueItems":true})", "#/uniqueItems is not"));
  CHECK(names(R"({"uniqueItems":true,"items":{"type":"integer"}})", "#/uniqueItems is not"));
  CHECK(names(R"({"format":"iri"})", "format 'iri' is not supported, only date"));
  CHECK(names(R"({"$ref":"other.json"})", "'other.json' is not within the schema"));
  CHECK(names(R"({"$ref":"#/$defs/none"})", "the schema has no '#/$defs/none'"));
  CHECK(names(R"({"type":"strange"})", "#/type is not a type"));
  CHECK(names(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "#/oneOf is not supported"));
  CHECK(names(R"s({"pattern":"(?=a)"})s", "#/pattern: at byte 2 of the pattern: lookahead"));
  CHECK(names(R"({"pattern":"a","maxLength":3})", "#/maxLength is not supported beside pattern"));
  CHECK(names(R"({"minimum":2,"maximum":1})", "no text of finite length"));
  CHECK(names(R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text of finite"));
  CHECK(names(R"({"allOf":[{"type":"null"},{"type":"string"}]})", "no type fits all"));
  CHECK(names(R"({"allOf":[{"$ref":"#"}]})", "no text of finite"));
  CHECK(names(R"({"minLength":100001})", "over 100000"));
  CHECK(names("[]", "# is not an object"));
  CHECK(why_not("{") != "");
}

TEST_CASE("hostile schemas end in an error or an automaton, soon") {
  std::string deep = R"({"type":"string"})";
  for (int i = 0; i < 60; ++i) deep = R"({"items":)" + deep + "}";
  CHECK(why_not(deep) == "");
  CHECK(
      names(R"({"items":{"items":{"type":"string","maxLength":90000},"maxItems":9},"maxItems":9})",
            "states") == false);
  CHECK(names(R"({"items":{"enum":["aaaaaaaaaa"]},"maxItems":100000})", "states"));
  std::string many = R"({"allOf":[)";
  for (int i = 0; i < 900; ++i) many += R"({"properties":{"p)" + std::to_string(i) + R"(":true}},)";
  many += "true]}";
  (void)why_not(many);
  std::string refs = R"({"anyOf":[)";
  for (int i = 0; i < 900; ++i) refs += R"({"$ref":"#/$defs/a"},)";
  refs += R"(true],"type":"object","$defs":{"a":{"anyOf":[{"$ref":"#"},{"required":["q"]}]}}})";
  CHECK(why_not(refs) != "");
}

TEST_CASE("200 random schemas: random logits give valid values through the sampler") {
  std::vector<std::string> texts;
  for (int c = 1; c < 256; ++c) texts.emplace_back(1, static_cast<char>(c));
  for (const char* more : {"\": ", "\", \"", "{\"", "\"}", "}}", "]}", ", ", "ab", "true", "null",
                           "\":{\"", "10", "0.", "é", "\": \"", "\n  "})
    texts.emplace_back(more);
  const std::vector<std::string_view> tokens(texts.begin(), texts.end());
  const auto trie = std::make_shared<const TokenTrie>(tokens);
  const size_t end = tokens.size();                               // the token that ends an answer
  const char* const file_name = std::getenv("MC_SCHEMA_VALUES");  // tests/nightly/schemas.sh
  const std::string kept = file_name == nullptr ? "" : file_name;
  Random random(20);
  for (int run = 0; run < 200; ++run) {
    const Json schema = test::RandomSchema(random).draw();
    CAPTURE(dump_json(schema));
    const auto a = compile(Form::kJsonSchema, dump_json(schema));
    REQUIRE_MESSAGE(a.has_value(), a.error().what);
    Masks masks(*a, trie);
    Matcher m(*a);
    TokenSet set(tokens.size());
    std::string text;
    for (uint64_t step = 0; !m.over(); ++step) {
      REQUIRE(step < 20'000);
      REQUIRE(masks.after(m, set));
      std::vector<float> logits(end + 1, -INFINITY);
      for (size_t i = 0; i < tokens.size(); ++i)
        if (set.has(i)) {
          logits[i] = static_cast<float>(random.normal());
          // A model comes to the end of a string too.
          if (step > 50 && tokens[i].starts_with('"')) logits[i] += static_cast<float>(step) / 50;
        }
      if (m.complete()) logits[end] = static_cast<float>(random.normal() + 1);
      const auto id = static_cast<size_t>(
          model::sample(logits, {.temperature = 1, .seed = random.next(), .position = step}));
      if (id == end) break;
      text += tokens[id];
      REQUIRE(*m.take(tokens[id]));
    }
    CHECK(m.complete());
    CAPTURE(text);
    const Json value = test::parse_value(text);
    REQUIRE(!value.is_discarded());
    CHECK(test::SchemaCheck(schema).fits(value));
    if (FILE* const file = kept.empty() ? nullptr : std::fopen(kept.c_str(), "a")) {
      std::fprintf(file, "{\"schema\": %s, \"value\": %s}\n", dump_json(schema).c_str(),
                   dump_json(value).c_str());
      std::fclose(file);
    }
  }
}
