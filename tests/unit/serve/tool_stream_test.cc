// Calls of tools in an answer's text, cut at every byte.
#include <doctest/doctest.h>

#include "base/json.h"
#include "serve/answers/tool_stream.h"

using namespace mc;
using namespace mc::serve;
using Format = model::ToolCallFormat;

namespace tool_stream_test {
namespace {

const char* const kSchema = R"({"type":"object","properties":{"s":{"type":"string"},
  "i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"l":{"type":"array"},
  "o":{"type":"object"},"maybe":{"type":["string","null"]},"either":{"anyOf":[{"type":"integer"},
  {"type":"string"}]},"one":{"enum":[1,2]},"ref":{"$ref":"#/$defs/x"},"free":{"title":"any"}}})";
const ToolUse kTools{{"weather", "f"}, true, {{"f", parameter_types(*parse_json(kSchema))}}};

// What was said, as text with {name(arguments)} for each call.
std::string joined(const std::vector<ToolPiece>& pieces) {
  std::string all;
  bool open = false;
  for (const ToolPiece& p : pieces) {
    if (open && p.kind != ToolPiece::Kind::kArguments) all += ")>";
    open = open && p.kind == ToolPiece::Kind::kArguments;
    if (p.kind == ToolPiece::Kind::kCall) {
      all += "<" + p.text + "(";
      open = true;
    } else {
      all += p.text;
    }
  }
  return all + (open ? ")>" : "");
}

std::string once(Format format, const std::string& text, size_t cut, size_t step,
                 const ToolUse& tools = kTools) {
  ToolStream stream(format, tools, 1);
  std::vector<ToolPiece> pieces;
  stream.push(text.substr(0, cut), pieces);
  for (size_t i = cut; i < text.size(); i += step) stream.push(text.substr(i, step), pieces);
  stream.flush(pieces);
  return joined(pieces);
}

// The same whole, cut in two anywhere, and byte by byte.
std::string said(Format format, const std::string& text, const ToolUse& tools = kTools) {
  const std::string whole = once(format, text, text.size(), 1, tools);
  CHECK(once(format, text, 0, 1, tools) == whole);
  for (size_t cut = 0; cut < text.size(); ++cut)
    CHECK(once(format, text, cut, text.size(), tools) == whole);
  return whole;
}

std::string hermes(const std::string& text) { return said(Format::kHermes, text); }
std::string llama3(const std::string& text) { return said(Format::kLlama3, text); }
std::string mistral(const std::string& text) { return said(Format::kMistral, text); }
std::string qwen(const std::string& text) { return said(Format::kQwen3Coder, text); }
std::string glm(const std::string& text) { return said(Format::kGlm45, text); }

// One argument, as each of the two writes it, between the marks of its call.
std::string qwen_argument(const std::string& key, const std::string& value) {
  return "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value +
         "\n</parameter>\n</function>\n</tool_call>";
}
std::string glm_argument(const std::string& key, const std::string& value) {
  return "<tool_call>f\n<arg_key>" + key + "</arg_key>\n<arg_value>" + value +
         "</arg_value>\n</tool_call>";
}

}  // namespace

TEST_CASE("tool calls: hermes, one and several, with text before and after") {
  CHECK(hermes("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"Oslo\"}}\n"
               "</tool_call>") == R"(<weather({"town": "Oslo"})>)");
  CHECK(hermes("Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
               "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[1,{\"b\":\"}]\\\"\"}]}}"
               "</tool_call>\nDone.") ==
        "Let me see.\n<f({})><f({\"a\":[1,{\"b\":\"}]\\\"\"}]})>\nDone.");
  CHECK(hermes("\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\n") == "<f({})>");
  CHECK(hermes(" only text \n") == " only text \n");
  CHECK(hermes("a < b, <tool_cal and <tool_calls>") == "a < b, <tool_cal and <tool_calls>");
}

TEST_CASE("tool calls: members in any order, arguments as text, null or missing") {
  const auto call = [](const std::string& json) { return hermes("<tool_call>" + json); };
  CHECK(call(R"({"arguments": {"x": 1}, "id": "7", "name": "f"}</tool_call>)") ==
        R"(<f({"x": 1})>)");
  CHECK(call(R"({"type":"function","name":"f","arguments":"{\"x\":1}"}</tool_call>)") ==
        R"(<f({"x":1})>)");
  CHECK(call(R"({"name":"f","arguments":null}</tool_call>)") == "<f({})>");
  CHECK(call(R"({"name":"f"}</tool_call>)") == "<f({})>");
  CHECK(call(R"({"name":"\u0066","parameters":{},"more":[1,2]}</tool_call>!)") == "<f({})>!");
}

TEST_CASE("tool calls: what looks like one and is none is text, and nothing is lost") {
  for (const std::string text : {
           R"(<tool_call>{"name":"other","arguments":{}}</tool_call>)",
           R"(<tool_call>no json</tool_call>)",
           R"(<tool_call>{"name":"f","arguments":[1]}</tool_call>)",
           R"(<tool_call>{"name":"f","arguments":"[1]"}</tool_call>)",
           R"(<tool_call>{"name":7,"arguments":{}}</tool_call>)",
           R"(<tool_call>{"arguments":{}}</tool_call>)",
           R"(<tool_call>{"name":"f","name":"f","arguments":{}}</tool_call>)",
           R"(<tool_call>{name:"f"}</tool_call> x)",
           R"(<tool_call>[]</tool_call>)",
           R"(<tool_call>)",
           R"(<tool_call>{"name":"f")",
           R"(<tool_call> {"na)",
           R"(<tool_c)",
       }) {
    CAPTURE(text);
    CHECK(hermes(text) == text);
  }
  // One that begins within what was none.
  CHECK(hermes(R"(<tool_call>{"x <tool_call>{"name":"f","arguments":{}}</tool_call>)") ==
        R"(<tool_call>{"x <f({})>)");
  CHECK(hermes(R"(<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>)") ==
        "<tool_call><f({})>");
}

TEST_CASE("tool calls: unfinished arguments come as they are, text behind them too") {
  CHECK(hermes(R"(<tool_call>{"name":"f","arguments":{"a": "b)") == R"(<f({"a": "b)>)");
  CHECK(hermes(R"(<tool_call>{"name":"f","arguments":{"a":1}} and so on)") ==
        R"(<f({"a":1})> and so on)");
  CHECK(hermes(R"(<tool_call>{"name":"f","arguments":{"a":1} and so on)") ==
        R"(<f({"a":1})> and so on)");
  CHECK(hermes(R"(<tool_call>{"name":"f","arguments":{"a":1}}</tool_ca!)") ==
        R"(<f({"a":1})></tool_ca!)");
}

TEST_CASE("tool calls: llama 3, bare at the begin, behind its tag, and several") {
  CHECK(llama3(R"({"name": "weather", "parameters": {"town": "Oslo"}})") ==
        R"(<weather({"town": "Oslo"})>)");
  CHECK(llama3("\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}}") == "<f({})>");
  CHECK(llama3(R"({"name":"f","parameters":{}}; {"name":"f","parameters":{"a":1}})") ==
        R"(<f({})><f({"a":1})>)");
  CHECK(llama3(R"({"name":"f","parameters":{}} {"name":"f","parameters":{"a":1}})") ==
        R"(<f({})><f({"a":1})>)");
  for (const std::string text :
       {R"({"name": "Ada", "parameters": {}})", R"({"answer": 42})",
        R"(It is {"name": "f", "parameters": {}})", "{", "{}", R"(<|python_tag|>print("x"))"}) {
    CAPTURE(text);
    CHECK(llama3(text) == text);
  }
  CHECK(llama3(R"({"name":"f","parameters":{}}; so)") == R"(<f({})>; so)");
}

TEST_CASE("tool calls: mistral, as a list, and with a name in front") {
  CHECK(mistral(R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "weather", )"
                R"("arguments": {}}])") == R"(<f({"a": 1})><weather({})>)");
  CHECK(mistral(R"(See: [TOOL_CALLS]weather{"town":"x"}[TOOL_CALLS]f[ARGS]{})") ==
        R"(See: <weather({"town":"x"})><f({})>)");
  CHECK(mistral(R"([TOOL_CALLS]f[CALL_ID]abc123DEF[ARGS]{"a":1})") == R"(<f({"a":1})>)");
  for (const std::string text :
       {R"([TOOL_CALLS][])", R"([TOOL_CALLS]g{"a":1})", R"([TOOL_CALLS] two words {})",
        R"([TOOL_CALLS][{"name":"g","arguments":{}}])", R"([TOOL_CALLS]f[X]{})"}) {
    CAPTURE(text);
    CHECK(mistral(text) == text);
  }
  CHECK(mistral(R"([TOOL_CALLS][{"name":"f","arguments":{}}, {"name":"g"}])") ==
        R"(<f({})>, {"name":"g"}])");
}

TEST_CASE("tool calls: qwen3_coder, one and several, with text before and after") {
  CHECK(
      qwen("Let me see.\n\n<tool_call>\n<function=weather>\n<parameter=town>\nOslo\n</parameter>\n"
           "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>") ==
      "Let me see.\n\n<weather({\"town\": \"Oslo\", \"days\": \"3\"})>");
  CHECK(qwen("<tool_call>\n<function=weather>\n</function>\n</tool_call>\n<tool_call>\n"
             "<function=f><parameter=i>7</parameter></function></tool_call>\nDone.") ==
        "<weather({})><f({\"i\": 7})>\nDone.");
  // Lines of a text stay, but for those that its marks stand on; marks of others are text in it.
  CHECK(qwen(qwen_argument("s", "\n a \"b\"\\\n</param>\t<tool_call> </function>\n")) ==
        R"(<f({"s": "\n a \"b\"\\\n</param>\u0009<tool_call> </function>\n"})>)");
  CHECK(qwen(qwen_argument("s", "")) == R"(<f({"s": ""})>)");
  // Some answers forget the outer mark.
  CHECK(qwen("So: <function=f>\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>") ==
        R"(So: <f({"i": 1})>)");
}

TEST_CASE("tool calls: glm45, one and several, with text before and after") {
  CHECK(glm("Let me see.\n<tool_call>weather\n<arg_key>town</arg_key>\n<arg_value>Oslo"
            "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>") ==
        "Let me see.\n<weather({\"town\": \"Oslo\", \"days\": \"3\"})>");
  CHECK(glm("<tool_call>weather</tool_call><tool_call>f<arg_key>i</arg_key><arg_value>7</arg_value>"
            "</tool_call>Done.") == "<weather({})><f({\"i\": 7})>Done.");
  CHECK(glm("<tool_call>\nweather\n</tool_call>") == "<weather({})>");
  CHECK(glm(glm_argument("s", "\n<b>&\n")) == R"(<f({"s": "\n<b>&\n"})>)");
}

TEST_CASE("tool calls: values get their types from the tool's schema") {
  const auto value = [](const std::string& key, const std::string& text) {
    const std::string said = qwen(qwen_argument(key, text));
    CHECK(glm(glm_argument(key, text)) == said);
    const std::string begin = "<f({\"" + key + "\": ";
    REQUIRE_MESSAGE(said.starts_with(begin), said);
    return said.substr(begin.size(), said.size() - begin.size() - 3);
  };
  CHECK(value("s", "5") == R"("5")");
  CHECK(value("i", " 5 ") == "5");
  CHECK(value("i", "five") == R"("five")");
  CHECK(value("n", "5") == "5");
  CHECK(value("n", "-1.50") == "-1.50");
  CHECK(value("b", "True") == "true");
  CHECK(value("b", "false") == "false");
  CHECK(value("l", "[1, \"x\"]") == "[1, \"x\"]");
  CHECK(value("l", "[1,") == "\"[1,\"");
  CHECK(value("o", "{\"a\": {}}") == "{\"a\": {}}");
  CHECK(value("maybe", "null") == "null");
  CHECK(value("maybe", "5") == R"("5")");
  CHECK(value("maybe", "\"x\"") == R"("\"x\"")");
  CHECK(value("either", "5") == "5");
  CHECK(value("either", "5.5") == R"("5.5")");
  CHECK(value("one", "2") == "2");
  CHECK(value("ref", "{\"a\": 1}") == "{\"a\": 1}");
  CHECK(value("ref", "red") == R"("red")");
  CHECK(value("free", "5") == R"("5")");
  CHECK(value("other", "5") == R"("5")");
}

TEST_CASE("tool calls: what looks like one of these and is none is text, and nothing is lost") {
  for (const std::string text :
       {"<tool_call>", "<tool_call>\n<function=g>\n</function>\n</tool_call>", "<function=f",
        "<function=f>", "<function=f> x",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=", "<tool_call>\n<function=f>\n<parameter=>\n",
        "a <function= b",
        "<tool_call>f\n<arg_key>i</arg_key><arg_value>1</arg_value></tool_call>"}) {
    CAPTURE(text);
    CHECK(qwen(text) == text);
  }
  for (const std::string text :
       {"<tool_call>f", "<tool_call>f\n", "<tool_call>no such\n</tool_call>",
        "<tool_call>f<arg_key>i</arg_key>", "<tool_call>f<arg_key></arg_key><arg_value>",
        "<tool_call>f<arg_key>i</arg_key>x<arg_value>1</arg_value></tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"}) {
    CAPTURE(text);
    CHECK(glm(text) == text);
  }
  CHECK(glm("<tool_call><tool_call>f</tool_call>") == "<tool_call><f({})>");
}

TEST_CASE("tool calls: what ends within one of these, or goes on with something else") {
  CHECK(qwen("<tool_call>\n<function=f>\n<parameter=s>\nab") == R"(<f({"s": "ab)>)");
  CHECK(qwen("<tool_call>\n<function=f>\n<parameter=i>\n12") == R"(<f({"i": 12)>)");
  CHECK(qwen("<function=f><parameter=i>1</parameter> and so on") == R"(<f({"i": 1})> and so on)");
  CHECK(glm("<tool_call>f<arg_key>s</arg_key><arg_value>ab</arg_") == R"(<f({"s": "ab)>)");
  CHECK(glm("<tool_call>f<arg_key>i</arg_key><arg_value>1</arg_value><arg_key>n</arg_key>?") ==
        R"(<f({"i": 1})><arg_key>n</arg_key>?)");
}

TEST_CASE("tool calls: ids differ, and are such as templates want") {
  const auto ids = [](Format format, const std::string& text, uint64_t seed) {
    ToolStream stream(format, kTools, seed);
    std::vector<ToolPiece> pieces;
    stream.push(text, pieces);
    std::vector<std::string> all;
    for (const ToolPiece& p : pieces)
      if (p.kind == ToolPiece::Kind::kCall) all.push_back(p.id);
    return all;
  };
  const auto two = ids(Format::kMistral, "[TOOL_CALLS]f{}[TOOL_CALLS]f{}", 3);
  REQUIRE(two.size() == 2);
  CHECK(two[0] != two[1]);
  CHECK(two[0].size() == 9);
  CHECK(two[0].find_first_not_of(
            "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos);
  const auto one = ids(Format::kLlama3, R"({"name":"f","parameters":{}})", 3);
  REQUIRE(one.size() == 1);
  CHECK(one[0].starts_with("call_"));
  CHECK(one != ids(Format::kLlama3, R"({"name":"f","parameters":{}})", 4));
}

TEST_CASE("tool calls: one at a time ends the answer with the first") {
  const ToolUse one{{"f"}, false};
  ToolStream stream(Format::kHermes, one, 1);
  std::vector<ToolPiece> pieces;
  stream.push("<tool_call>{\"name\":\"f\",\"arguments\":{}", pieces);
  CHECK_FALSE(stream.ended());
  stream.push("}</tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}", pieces);
  CHECK(stream.ended());
  stream.flush(pieces);
  CHECK(joined(pieces) == "<f({})>");
}

TEST_CASE("tool calls: hostile answers are bounded, and nothing of them is lost") {
  const auto whole = [](Format format, const std::string& text) {
    return once(format, text, text.size(), 1);
  };
  const std::string big(ToolStream::kHeldMax * 2, 'x');
  const std::string unclosed = "<tool_call>{\"" + big;
  CHECK(whole(Format::kHermes, unclosed) == unclosed);
  std::string marks, calls, deep = "<tool_call>{\"name\":\"f\",\"arguments\":";
  for (int i = 0; i < 5000; ++i) marks += "<tool_call>{\"a\":\"";
  CHECK(whole(Format::kHermes, marks) == marks);
  deep += std::string(100'000, '{');
  CHECK(whole(Format::kHermes, deep) == "<f(" + std::string(100'000, '{') + ")>");
  const std::string nested = "<tool_call>{\"x\":" + std::string(100'000, '[');
  CHECK(whole(Format::kHermes, nested) == nested);
  for (int i = 0; i < 500; ++i) calls += "[TOOL_CALLS]f{}";
  ToolStream stream(Format::kMistral, kTools, 1);
  std::vector<ToolPiece> pieces;
  stream.push(calls, pieces);
  CHECK(stream.calls() == ToolStream::kCallsMax);
  CHECK(joined(pieces).ends_with("[TOOL_CALLS]f{}"));
  const std::string parameter = "<function=f><parameter=i>";
  CHECK(whole(Format::kQwen3Coder, parameter + big + "</parameter></function>") ==
        "<f({\"i\": \"" + big + "\"})>");
  CHECK(whole(Format::kQwen3Coder, parameter + "1</parameter>" + std::string(5000, '\n') + "!") ==
        "<f({\"i\": 1})>" + std::string(5000, '\n') + "!");
  CHECK(whole(Format::kQwen3Coder, "<function=" + big) == "<function=" + big);
  CHECK(whole(Format::kGlm45, "<tool_call>f<arg_key>" + big) == "<tool_call>f<arg_key>" + big);
  std::string functions;
  for (int i = 0; i < 5000; ++i) functions += "<tool_call><function=";
  CHECK(whole(Format::kQwen3Coder, functions) == functions);
  const std::string blank(ToolStream::kHeldMax * 2, ' ');
  CHECK(whole(Format::kHermes, blank) == blank);
  CHECK(whole(Format::kLlama3, "<|python_tag|>" + blank) == "<|python_tag|>" + blank);
}

}  // namespace tool_stream_test
