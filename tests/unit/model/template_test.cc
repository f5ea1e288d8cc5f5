#include "model/template/jinja_template.h"

#include <doctest/doctest.h>

#include "base/json.h"

using namespace mc;
using namespace mc::model;

namespace template_test {
namespace {

std::tm spring() {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mon = 2;
  now.tm_mday = 7;
  return now;
}

Result<std::string> run(std::string_view source, const Json& variables = Json::object(),
                        const TemplateLimits& limits = {}) {
  MC_TRY(const JinjaTemplate t, JinjaTemplate::parse(source, "t"));
  return t.render(variables, spring(), limits);
}

std::string text(std::string_view source, const Json& variables = Json::object()) {
  const auto out = run(source, variables);
  REQUIRE_MESSAGE(out.has_value(), out.error().what);
  return *out;
}

std::string why(std::string_view source, const Json& variables = Json::object()) {
  const auto out = run(source, variables);
  REQUIRE_FALSE(out.has_value());
  return out.error().what;
}

}  // namespace

// Each wanted text below is what jinja2 3.1.6 wrote, with transformers' settings.
TEST_CASE("template: white space around tags") {
  CHECK(text("  {% if true %}\n  a\n  {% endif %}\nb\n") == "  a\nb");
  CHECK(text("a  {%- if true -%}  \n b {% endif %}") == "ab ");
  CHECK(text("x\n  {{ 1 }}\n") == "x\n  1");
  CHECK(text("  {%+ if true +%}\ny{% endif %}") == "  \ny");
  CHECK(text("a\n  {# note #}\nb {#- c -#} d") == "a\nbd");
  CHECK(text("{% raw %}{{ x }}{% endraw %}") == "{{ x }}");
  CHECK(text("a\r\nb\r") == "a\nb");
  CHECK(text("{% for i in [1] %}x {% endfor %}  \n z") == "x   \n z");
}

TEST_CASE("template: values are written as Python writes them") {
  CHECK(text("{{ [1, 'a', none, true, 1.0, {'k': \"it's\"}, (1,)] }}") ==
        R"([1, 'a', None, True, 1.0, {'k': "it's"}, (1,)])");
  CHECK(text("{{ 1e16 }} {{ 0.1 + 0.2 }} {{ 1e-05 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }}") ==
        "1e+16 0.30000000000000004 1e-05 3.5 -4 2");
  CHECK(text("{{ x }}|{{ x.y is defined }}", {{"x", Json::object()}}) == "{}|False");
  CHECK(text("{{ nothing }}{{ none }}") == "None");
  CHECK(text("{{ '\\x41\\u00e9\\n' }}") == "A\xC3\xA9\n");
}

TEST_CASE("template: JSON as json.dumps writes it") {
  const Json v = {{"a", {1, 2.0, "\xC3\xA9\"<\n"}}, {"b", Json::object()}, {"c", nullptr}};
  CHECK(text("{{ v | tojson }}", {{"v", v}}) ==
        "{\"a\": [1, 2.0, \"\xC3\xA9\\\"<\\n\"], \"b\": {}, \"c\": null}");
  CHECK(text("{{ {'k': [1]} | tojson(indent=2) }}") == "{\n  \"k\": [\n    1\n  ]\n}");
  CHECK(text("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}") ==
        R"({"a":2,"b":1})");
}

TEST_CASE("template: loops") {
  CHECK(text("{% for a, b in {'x': 1, 'y': 2}.items() %}{{ loop.index }}{{ a }}{{ b }}"
             "{{ '' if loop.last else ',' }}{% endfor %}") == "1x1,2y2");
  CHECK(text("{% for i in range(9) if i is odd %}{% if i == 5 %}{% continue %}{% endif %}"
             "{% if loop.revindex0 == 0 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "13");
  CHECK(text("{% for i in [] %}x{% else %}none{% endfor %}") == "none");
  CHECK(text("{% set n = 0 %}{% for i in [1, 2] %}{% set n = n + i %}{% endfor %}{{ n }}") == "0");
  CHECK(text("{% set s = namespace(n=0) %}{% for i in [1, 2] %}{% set s.n = s.n + i %}"
             "{% endfor %}{{ s.n }}") == "3");
  CHECK(text("{% for i in 'a\xC3\xA9' %}[{{ i }}{{ loop.previtem }}]{% endfor %}") ==
        "[a][\xC3\xA9"
        "a]");
}

TEST_CASE("template: strings, slices and members") {
  CHECK(text("{{ 'a,b,,c'.split(',')[-1] }}{{ ' x y '.split() }}{{ ' x '.strip() }}") ==
        "c['x', 'y']x");
  CHECK(text("{{ 'h\xC3\xA9llo'[1:3] }}{{ 'abc'[::-1] }}{{ [1, 2, 3][:-1] }}") ==
        "\xC3\xA9lcba[1, 2]");
  CHECK(text("{{ 'h\xC3\xA9' | length }}{{ '%s-%d' % ('a', 3) }}{{ '{}{n}'.format(1, n=2) }}") ==
        "2a-312");
  // A dict's methods come before its members by a dot, after them in brackets.
  CHECK(text("{{ d.items is callable }}{{ d['items'] }}", {{"d", {{"items", 1}}}}) == "True1");
  CHECK(text("{{ d.get('x', 'no') }}{{ d.x is defined }}{{ d['y'] }}", {{"d", {{"y", 1}}}}) ==
        "noFalse1");
}

TEST_CASE("template: filters and tests") {
  const Json v = {{"l", {{{"r", "a"}, {"n", 1}}, {{"r", "b"}}}}};
  CHECK(text("{{ l | selectattr('n', 'defined') | map(attribute='r') | list }}", v) == "['a']");
  CHECK(text("{{ l | rejectattr('r', 'equalto', 'a') | list | length }}", v) == "1");
  CHECK(text("{{ l | map(attribute='r') | join(', ') | upper }}", v) == "A, B");
  CHECK(text("{{ x | default('d') }}{{ '' | default('e', true) }}{{ none | default('f') }}") ==
        "deNone");
  CHECK(text("{{ 'a\nb\n\nc' | indent(2) }}|{{ 'ab' | replace('a', 'x') | title }}") ==
        "a\n  b\n\n  c|Xb");
  CHECK(text("{{ {'b': 1, 'A': 2} | dictsort }}") == "[('A', 2), ('b', 1)]");
  CHECK(text("{{ 3 is divisibleby 3 }}{{ 'a' is in ['a'] }}{{ not x is defined }}"
             "{{ {} is mapping and [] is sequence }}") == "TrueTrueTrueTrue");
  CHECK(text("{{ 'x' if [] | select | list else 'y' }}{{ '12' | int + 1 }}{{ 'z' | int }}") ==
        "y130");
  CHECK(text("{{ 'a' | safe + '<' }}{{ 'a' ~ '<' }}") == "a&lt;a<");
}

TEST_CASE("template: macros, set blocks, and the functions of transformers") {
  CHECK(text("{% macro f(x, y='b') %}{{ x }}{{ y }}{{ z }}{% endmacro %}{% set z = 1 %}"
             "{{ f('a') }}{{ f('c', y='d') }}") == "ab1cd1");
  CHECK(text("{% set x | trim %}  a{{ 1 }} {% endset %}[{{ x }}]") == "[a1]");
  CHECK(text("{{ strftime_now('%d %b %Y') }}") == "07 Mar 2025");
  const std::string many(5000, 'x');
  CHECK(text("{{ strftime_now('" + many + "%Y') }}") == many + "2025");
  CHECK(text("[{{ strftime_now('%999999Y') }}{{ strftime_now('') }}]") == "[]");
  CHECK(text("{% generation %}a{% endgeneration %}{% filter upper %}b{% endfilter %}") == "aB");
  CHECK(why("a\n{{ raise_exception('no ' ~ 1) }}") == "t, line 2: no 1");
}

TEST_CASE("template: what is wrong is named with its line") {
  CHECK(why("a\n\n{% if x %}") == "t, line 3: want {% endif %}, found the end");
  CHECK(why("{{ a b }}").starts_with("t, line 1: want '}}', found 'b'"));
  CHECK(why("\n{{ 1 | nofilter }}") == "t, line 2: the filter 'nofilter' is not known here");
  CHECK(why("{% include 'x' %}") == "t, line 1: the tag 'include' is not done here");
  CHECK(why("{{ x.y.z }}", {{"x", Json::object()}}) ==
        "t, line 1: a member of 'y', which is undefined");
  CHECK(why("{{ 'a' + 1 }}") == "t, line 1: str + int");
  CHECK(why("{{ [].append(1) }}").find("it would change") != std::string::npos);
  CHECK(why("{# never").find("does not end") != std::string::npos);
}

TEST_CASE("template: a hostile one ends, and makes no more than it may") {
  const TemplateLimits small{.steps = 100'000, .bytes = 1u << 20, .output = 1u << 16, .depth = 200};
  const auto refused = [&](const std::string& source) {
    const auto out = run(source, Json::object(), small);
    REQUIRE_FALSE(out.has_value());
    CHECK(out.error().code == Code::kNoSpace);
  };
  refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  refused("{{ 'x' * 999999999999 }}");
  refused(
      "{% set s = namespace(x='ab') %}{% for i in range(99) %}{% set s.x = s.x + s.x %}"
      "{% endfor %}");
  refused("{% for i in range(70000) %}x{% endfor %}");
  refused("{{ range(999999999) }}");
  refused("{{ [1] * 99999999 }}");
  const auto nested =
      run("{% set s = namespace(x=[]) %}{% for i in range(9999) %}"
          "{% set s.x = [s.x] %}{% endfor %}");
  CHECK(nested.error().what.find("200 deep") != std::string::npos);
  std::string deep(5000, '('), chain = "{{ 1", elifs = "{% if a %}";
  CHECK_FALSE(run("{{ " + deep).has_value());
  for (int i = 0; i < 20000; ++i) chain += "+1", elifs += "{% elif a %}";
  CHECK(why(chain + " }}").find("500 operators") != std::string::npos);
  CHECK(why(elifs + "{% endif %}").find("500 operators") != std::string::npos);
  CHECK_FALSE(run(std::string(kTemplateBytesMax + 1, 'a')).has_value());
}

// Each was a few steps, or none: small lists that share others took for ever, and large ones that
// were looked through or copied again and again took hours, or all memory.
TEST_CASE("template: what is compared, looked through or copied costs steps") {
  const TemplateLimits small{.steps = 100'000, .bytes = 1u << 20, .output = 1u << 16, .depth = 200};
  const auto refused = [&](const std::string& source) {
    const auto out = run(source, Json::object(), small);
    REQUIRE_MESSAGE(!out.has_value(), source.substr(0, 200));
    CHECK(out.error().code == Code::kNoSpace);
  };
  const std::string shared =
      "{% set s = namespace(a=[], b=[]) %}{% for i in range(20) %}{% set s.a = [s.a, s.a] %}"
      "{% set s.b = [s.b, s.b] %}{% endfor %}";
  for (const char* const end :
       {"s.a == s.b", "s.a != s.b", "s.a < s.b", "s.a in [s.b]", "s.a not in [s.b]",
        "[s.a].index(s.b)", "[s.a, s.b] | unique | list | length", "[s.a, s.b] | sort | length",
        "[s.a, s.b] | max | length", "s.a is sameas s.b", "s.a is in [s.b]",
        "{'x': s.a} == {'x': s.b}"})
    refused(shared + "{{ " + end + " }}");
  const auto often = [](int times, const std::string& what) {
    return "{% for i in range(" + std::to_string(times) + ") %}{% if " + what +
           " %}{% endif %}{% endfor %}";
  };
  const std::string list = "{% set l = [0] * 9000 %}", letters = "{% set t = 'x' * 400000 %}";
  refused(list + often(100, "1 in l"));
  refused(list + often(100, "l.count(1)"));
  refused(letters + often(100, "'y' in t"));
  refused(letters + often(100, "t[0]"));
  refused(letters + often(100, "t is upper"));
  refused(letters + often(100, "t | int"));
  refused(letters + "{% set u = 'x' * 400000 %}" + often(100, "t == u"));
  refused(letters + "{% set u = 'x' * 400000 %}" + often(100, "t < u"));
  refused(list + "{% set s = namespace(k=[]) %}{% for i in range(60) %}" +
          "{% set s.k = s.k + [l | list] %}{% endfor %}");
  refused("{% set t = 'a ' * 100000 %}{{ t.split() | length }}");
  std::string dict = "{% set d = {", names, members = "{% set n = namespace() %}";
  for (int i = 0; i < 4000; ++i) {
    const std::string n = std::to_string(i);
    if (i < 500) dict += "'" + n + "': 1, ";
    names += "{% set a" + n + " = 1 %}";
    members += "{% set n.a" + n + " = 1 %}";
  }
  refused(dict + "} %}" + often(20, "dict(d)"));
  refused(dict + "} %}" + often(20, "d.copy()"));
  refused(names + often(1000, "nobody"));
  refused(members + often(1000, "n.nobody"));
  CHECK(text("{{ [[1, 'a'], {'x': [1.0]}] == [[true, 'a'], {'x': [1]}] }}") == "True");
  CHECK(text("{{ 'h\u00e9llo'[1] }}{{ 'h\u00e9llo'[-1] }}") == "\u00e9o");
}

TEST_CASE("template: whether it reads a message's content as parts") {
  const auto reads = [](std::string_view source) {
    return JinjaTemplate::parse(source, "t")->reads_content_parts();
  };
  CHECK(reads("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}"));
  CHECK(reads("{% set c = m.content | default('') %}{% for p in c %}{% endfor %}"));
  CHECK_FALSE(reads("{% for m in messages %}{{ m.content }}{% endfor %}"));
}

}  // namespace template_test
