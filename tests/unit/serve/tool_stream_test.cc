// Calls of tools in an answer's text, cut at every byte.
#include <doctest/doctest.h>

#include "serve/answers/tool_stream.h"

using namespace mc;
using namespace mc::serve;
using Format = model::ToolCallFormat;

namespace tool_stream_test {
namespace {

const ToolUse kTools{{"weather", "f"}, true};

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
  const std::string blank(ToolStream::kHeldMax * 2, ' ');
  CHECK(whole(Format::kHermes, blank) == blank);
  CHECK(whole(Format::kLlama3, "<|python_tag|>" + blank) == "<|python_tag|>" + blank);
}

}  // namespace tool_stream_test
