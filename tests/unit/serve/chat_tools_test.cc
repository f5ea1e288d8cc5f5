// Chats with tools, of own workers whose model's template knows them.
#include <doctest/doctest.h>

#include "base/json.h"
#include "model/grammar/matcher.h"
#include "text_model.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace chat_tools_test {
namespace {

const std::string kTools = R"("tools":[{"type":"function","function":{"name":"weather",)"
                           R"("parameters":{"type":"object"}}}])";
std::string body(const std::string& members) {
  return R"({"model":"texts","messages":[{"role":"user","content":"hi"}],)" + members + "}";
}
const std::string kCall =
    "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"Oslo\"}}\n"
    "</tool_call>";

std::vector<Json> events(const std::string& stream) {
  std::vector<Json> all;
  for (size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; at += 6)
    all.push_back(*parse_json(stream.substr(at + 6, stream.find('\n', at) - at - 6)));
  return all;
}

}  // namespace

TEST_CASE("chat with tools: the template has them, and a call comes back as one") {
  TextSite s;
  s.says = kCall;
  const auto r = s.ask("/v1/chat/completions", body(kTools));
  REQUIRE_MESSAGE(r.status == 200, r.body);
  const Json choice = (*parse_json(r.body))["choices"][0];
  CHECK(choice["finish_reason"] == "tool_calls");
  CHECK(choice["message"]["content"] == "Let me see.\n");
  REQUIRE(choice["message"]["tool_calls"].size() == 1);
  const Json call = choice["message"]["tool_calls"][0];
  CHECK(call["type"] == "function");
  CHECK(call["id"].get<std::string>().starts_with("call_"));
  CHECK(call["function"] == Json{{"name", "weather"}, {"arguments", "{\"town\": \"Oslo\"}"}});
  CHECK(s.prompt() == "[weather]<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_CASE("chat with tools: streamed, name first and arguments in pieces, as it is whole") {
  TextSite s;
  s.says = kCall;
  const std::string stream = s.stream("/v1/chat/completions", body(kTools + R"(,"stream":true)"));
  std::string content, arguments, name, finish;
  size_t pieces = 0;
  for (const Json& e : events(stream)) {
    const Json& choice = e["choices"][0];
    const Json& delta = choice["delta"];
    if (const Json* text = member(delta, "content")) content += text->get<std::string>();
    if (const Json* calls = member(delta, "tool_calls"))
      for (const Json& call : *calls) {
        CHECK(call["index"] == 0);
        if (call.contains("id")) {
          CHECK(arguments.empty());
          CHECK(call["type"] == "function");
          name = call["function"]["name"];
        }
        const std::string more = call["function"]["arguments"];
        arguments += more;
        pieces += more.empty() ? 0 : 1;
      }
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  CHECK(content == "Let me see.\n");
  CHECK(name == "weather");
  CHECK(arguments == "{\"town\": \"Oslo\"}");
  CHECK(pieces > 3);
  CHECK(finish == "tool_calls");
  CHECK(stream.ends_with("data: [DONE]\n\n"));
}

TEST_CASE("chat with tools: none are called, or may be, and the text comes as it is") {
  TextSite s;
  s.says = "It is <tool_call>cold";
  Json choice = (*parse_json(s.ask("/v1/chat/completions", body(kTools)).body))["choices"][0];
  CHECK(choice["message"]["content"] == s.says);
  CHECK(choice["finish_reason"] == "stop");
  CHECK_FALSE(choice["message"].contains("tool_calls"));
  s.says = kCall;
  const auto none = s.ask("/v1/chat/completions", body(kTools + R"(,"tool_choice":"none")"));
  choice = (*parse_json(none.body))["choices"][0];
  CHECK_FALSE(choice["message"].contains("tool_calls"));
  CHECK(choice["finish_reason"] == "stop");
  CHECK(s.prompt() == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  // What is cut within its arguments says so.
  s.says = kCall.substr(0, kCall.size() - 20);
  s.finish = "length";
  choice = (*parse_json(s.ask("/v1/chat/completions", body(kTools)).body))["choices"][0];
  CHECK(choice["finish_reason"] == "length");
  CHECK(choice["message"]["tool_calls"].size() == 1);
}

TEST_CASE("chat with tools: one call at a time ends the answer at its worker") {
  TextSite s;
  s.says = kCall + "<tool_call>{\"name\":\"weather\",\"arguments\":{}}</tool_call>";
  s.finish = "";
  const auto r = s.ask("/v1/chat/completions", body(kTools + R"(,"parallel_tool_calls":false)"));
  const Json choice = (*parse_json(r.body))["choices"][0];
  CHECK(choice["message"]["tool_calls"].size() == 1);
  CHECK(choice["finish_reason"] == "tool_calls");
  REQUIRE(until(s.loop, [&] { return s.conductor->in_flight() == 0; }));
}

TEST_CASE("chat with tools: a conversation goes on behind calls and their results") {
  TextSite s;
  s.says = "cold";
  const auto r = s.ask(
      "/v1/chat/completions",
      R"({"model":"texts","messages":[{"role":"user","content":"hi"},{"role":"assistant",)"
      R"("content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"weather",)"
      R"("arguments":"{\"town\":\"Oslo\"}"}}]},{"role":"tool","tool_call_id":"c",)"
      R"("content":"-3"}],)" +
          kTools + "}");
  REQUIRE_MESSAGE(r.status == 200, r.body);
  CHECK(s.prompt().find("<tool_call>{\"town\": \"Oslo\"}") != std::string::npos);
  CHECK(s.prompt().find("tool\n-3") != std::string::npos);
}

TEST_CASE("chat with tools: what is malformed or not done is a 400 that names it") {
  TextSite s;
  const auto param = [&](const std::string& members) {
    const auto r = s.ask("/v1/chat/completions", body(members));
    CHECK_MESSAGE(r.status == 400, r.body);
    return (*parse_json(r.body))["error"]["param"];
  };
  CHECK(param(R"("tools":{})") == "tools");
  CHECK(param(R"("tools":[{"type":"function"}])") == "tools");
  CHECK(param(R"("tools":[{"type":"web_search"}])") == "tools");
  CHECK(param(R"("tools":[{"type":"function","function":{"name":""}}])") == "tools");
  CHECK(param(R"("tool_choice":"required")") == "tool_choice");
  CHECK(param(R"("tools":[],"tool_choice":"required")") == "tool_choice");
  CHECK(param(kTools + R"(,"tool_choice":"any")") == "tool_choice");
  CHECK(param(kTools + R"(,"tool_choice":{"type":"allowed_tools","tools":[]})") == "tool_choice");
  CHECK(param(kTools + R"(,"tool_choice":{"type":"function","function":{"name":"time"}})") ==
        "tool_choice");
  CHECK(param(kTools + R"(,"tool_choice":"required","response_format":{"type":"json_object"})") ==
        "tool_choice");
  CHECK(param(kTools + R"(,"tool_choice":"required","ignore_eos":true)") == "ignore_eos");
  CHECK(param(R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f",)"
              R"("parameters":{"properties":{"a":{"contains":{}}}}}}])") == "tools");
  CHECK(param(R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f",)"
              R"("parameters":{"type":"array"}}}])") == "tools");
  CHECK(param(kTools + R"(,"parallel_tool_calls":"no")") == "parallel_tool_calls");
  TextSite without(patient(), "none");
  const auto r = without.ask("/v1/chat/completions", body(kTools));
  CHECK(r.status == 400);
  CHECK(r.body.find("--tool-call-parser") != std::string::npos);
  CHECK(without.ask("/v1/chat/completions", body(R"("tools":[])")).status == 200);
}

TEST_CASE("chat with tools: a call that has to be made is the form of the answer") {
  TextSite s;
  s.says = kCall.substr(kCall.find('<'));
  const auto fits = [&](const std::string& members, const std::string& text) {
    const auto r = s.ask("/v1/chat/completions", body(members));
    REQUIRE_MESSAGE(r.status == 200, r.body);
    const Json choice = (*parse_json(r.body))["choices"][0];
    CHECK(choice["finish_reason"] == "tool_calls");
    if (s.asked.constraint.none()) return false;
    const auto a = model::grammar::compile(s.asked.constraint.kind(), s.asked.constraint.text);
    REQUIRE_MESSAGE(a, a.error().what);
    model::grammar::Matcher m(*a);
    const auto took = m.take(text);
    return took && *took && m.complete();
  };
  const std::string both =
      R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"properties":{)"
      R"("town":{"type":"string"}},"required":["town"]}}},)"
      R"({"type":"function","function":{"name":"say \"x\"\n"}}],)";
  const std::string weather = s.says;
  const std::string say =
      "<tool_call>\n{\"name\": \"say \\\"x\\\"\\n\", \"arguments\": {}}\n</tool_call>";
  const std::string required = both + R"("tool_choice":"required")";
  CHECK(fits(required, weather));
  CHECK(fits(required, say + "\n" + weather));
  CHECK_FALSE(fits(required, ""));
  CHECK_FALSE(fits(required, "Let me see."));
  CHECK_FALSE(fits(required, kCall));
  CHECK_FALSE(fits(required, R"(<tool_call>
{"name": "weather", "arguments": {}}
</tool_call>)"));
  CHECK_FALSE(fits(required + R"(,"parallel_tool_calls":false)", say + "\n" + weather));
  CHECK(fits(required + R"(,"parallel_tool_calls":false)", say));
  const std::string named =
      both + R"("tool_choice":{"type":"function","function":{"name":"weather"}})";
  CHECK(fits(named, weather));
  CHECK_FALSE(fits(named, say));
  // A call, or an answer in its form.
  const std::string either =
      both + R"("response_format":{"type":"json_schema","json_schema":{"schema":{"const":7}}})";
  CHECK(fits(either, weather));
  CHECK(fits(either, "7"));
  CHECK_FALSE(fits(either, "8"));
  CHECK(fits(both + R"("response_format":{"type":"json_object"})", R"({"a": 1})"));
  CHECK_FALSE(fits(both + R"("tool_choice":"auto")", weather));  // nothing is said of its form
}

TEST_CASE("chat with tools: calls that are no JSON come back as JSON, whole and streamed") {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"weather",)"
                            R"("parameters":{"properties":{"town":{"type":"string"},)"
                            R"("days":{"type":"integer"}}}}}])";
  for (const std::string parser : {"qwen3_coder", "glm45"}) {
    CAPTURE(parser);
    TextSite s(patient(), parser);
    s.says = parser == "glm45"
                 ? "See.\n<tool_call>weather\n<arg_key>town</arg_key>\n<arg_value>Oslo"
                   "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
                   "</tool_call>"
                 : "See.\n<tool_call>\n<function=weather>\n<parameter=town>\nOslo\n"
                   "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n"
                   "</tool_call>";
    const auto r = s.ask("/v1/chat/completions", body(tools));
    REQUIRE_MESSAGE(r.status == 200, r.body);
    const Json choice = (*parse_json(r.body))["choices"][0];
    CHECK(choice["finish_reason"] == "tool_calls");
    CHECK(choice["message"]["content"] == "See.\n");
    REQUIRE(choice["message"]["tool_calls"].size() == 1);
    const Json want = {{"name", "weather"}, {"arguments", R"({"town": "Oslo", "days": 3})"}};
    CHECK(choice["message"]["tool_calls"][0]["function"] == want);
    std::string name, arguments;
    for (const Json& e :
         events(s.stream("/v1/chat/completions", body(tools + R"(,"stream":true)"))))
      if (const Json* calls = member(e["choices"][0]["delta"], "tool_calls"))
        for (const Json& call : *calls) {
          name += call["function"].value("name", "");
          arguments += call["function"]["arguments"];
        }
    CHECK(Json{{"name", name}, {"arguments", arguments}} == want);
    // No mask is made for them.
    const auto param = [&](const std::string& members) {
      const auto refused = s.ask("/v1/chat/completions", body(tools + members));
      CHECK_MESSAGE(refused.status == 400, refused.body);
      CHECK(refused.body.find(parser) != std::string::npos);
      return (*parse_json(refused.body))["error"]["param"];
    };
    CHECK(param(R"(,"tool_choice":"required")") == "tool_choice");
    CHECK(param(R"(,"tool_choice":{"type":"function","function":{"name":"weather"}})") ==
          "tool_choice");
    CHECK(param(R"(,"response_format":{"type":"json_object"})") == "response_format");
  }
}

TEST_CASE("chat with tools: a parser that is not known is refused by its name") {
  ApiServerOptions options{.http = "127.0.0.1:0", .tool_call_parser = "pythonic"};
  Cluster c;
  const auto opened = ApiServer::open(c.loop, options, *c.conductor, c.metrics);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().what.find("pythonic") != std::string::npos);
}

}  // namespace chat_tools_test
