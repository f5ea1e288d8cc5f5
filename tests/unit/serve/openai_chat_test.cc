// Chats that a model's own template writes.
#include <doctest/doctest.h>

#include "base/json.h"
#include "serve/request/openai.h"

using namespace mc;
using namespace mc::serve;

namespace openai_chat_test {
namespace {

const auto kBytes = model::Tokenizer::bytes_only(300);

// What the template is given is what the prompt's bytes spell.
tl::expected<std::string, ApiError> said(const char* jinja, const std::string& members) {
  ApiLimits limits = limits_of(kBytes, "m", 4096, 300, model::chat_format(jinja, "", "", ""));
  limits.now = [] {
    std::tm now{};
    now.tm_year = 125;
    return now;
  };
  const auto r = parse_completion(R"({"model":"m",)" + members + "}", true, limits);
  if (!r) return tl::unexpected(r.error());
  return kBytes.decode(r->prompt);
}

}  // namespace

TEST_CASE("chat by a template: content parts, members of requests, and the date") {
  const std::string parts = R"("messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
                            R"({"type":"text","text":"b"}]}])";
  CHECK(said("{{ messages[0].content }}", parts) == "a\nb");
  CHECK(said("{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}", parts) == "[a][b]");
  CHECK(said("{{ strftime_now('%Y') }}{{ add_generation_prompt }}{{ tools }}", parts) ==
        "2025TrueNone");
  CHECK(said("{{ enable_thinking }}{{ documents[0].t }}{{ add_generation_prompt }}",
             parts + R"(,"chat_template_kwargs":{"enable_thinking":false},)"
                     R"("documents":[{"t":1}],"add_generation_prompt":false)") == "False1False");
}

TEST_CASE("chat by a template: reasoning_effort is a variable, and says whether to think") {
  const std::string user = R"("messages":[{"role":"user","content":"x"}])";
  const char* const both = "{{ reasoning_effort }},{{ enable_thinking }}";
  const auto asked = [&](const std::string& members) { return said(both, user + members); };
  CHECK(asked("") == ",");
  CHECK(asked(R"(,"reasoning_effort":null)") == ",");
  CHECK(asked(R"(,"reasoning_effort":"low")") == "low,True");
  CHECK(asked(R"(,"reasoning_effort":"none")") == "none,False");
  CHECK(asked(R"(,"reasoning_effort":"max","chat_template_kwargs":)"
              R"({"reasoning_effort":"low","enable_thinking":false})") == "max,False");
  CHECK(asked(R"(,"chat_template_kwargs":{"reasoning_effort":"any"})") == "any,");
  for (const char* const wrong : {R"("extreme")", "7", R"("")"}) {
    const auto r = asked(R"(,"reasoning_effort":)" + std::string(wrong));
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().status == 400);
    CHECK(r.error().param == "reasoning_effort");
  }
}

TEST_CASE("chat by a template: reasoning_effort that it does not read is named as ignored") {
  const auto ignored = [](const char* jinja, const char* tools, const std::string& more) {
    const ApiLimits limits =
        limits_of(kBytes, "m", 4096, 300, model::chat_format(jinja, tools, "", ""));
    const auto r = parse_completion(
        R"({"model":"m","messages":[{"role":"user","content":"x"}],"reasoning_effort":"high")" +
            more + "}",
        true, limits);
    REQUIRE_MESSAGE(r, r.error().message);
    return r->ignored;
  };
  CHECK(ignored("{{ reasoning_effort }}", "", "") == "");
  CHECK(ignored("{% if enable_thinking %}<think>{% endif %}x", "", "") == "");
  CHECK(ignored("x", "", "") == "reasoning_effort");
  // The template of chats with tools is another.
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  const char* const other = "<tool_call>{{ tools | tojson }}";
  CHECK(ignored("{{ reasoning_effort }}", other, "") == "");
  CHECK(ignored("{{ reasoning_effort }}", other, tools) == "reasoning_effort");
}

TEST_CASE("chat by a template: tool calls and answers of tools in what was said") {
  CHECK(said("{{ messages[0].tool_calls[0].function.arguments.x }}{{ messages[0].content }}"
             "{{ messages[1].role }}",
             R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f",)"
             R"("arguments":"{\"x\":[1]}"}}]},{"role":"tool","content":"y"}])") == "[1]Nonetool");
}

TEST_CASE("chat by a template: what it refuses, and what is malformed, is a 400 that says why") {
  const auto why = [](const char* jinja, const std::string& members) {
    const auto r = said(jinja, members);
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().status == 400);
    return r.error().message;
  };
  const std::string user = R"("messages":[{"role":"user","content":"x"}])";
  CHECK(why("\n{{ raise_exception('roles must alternate') }}", user) ==
        "chat template, line 2: roles must alternate");
  CHECK(why("x", user + R"(,"chat_template_kwargs":[])").find("want an object") !=
        std::string::npos);
  CHECK(why("x", R"("messages":[{"role":"user"}])").find("content") != std::string::npos);
  CHECK(why("x", R"("messages":[{"role":"assistant","tool_calls":[)"
                 R"({"function":{"arguments":"{"}}]}])")
            .find("arguments") != std::string::npos);
  CHECK(why("x", user + R"(,"tools":[{"type":"function","function":{"name":"f"}}])")
            .find("'tools'") != std::string::npos);
}

}  // namespace openai_chat_test
