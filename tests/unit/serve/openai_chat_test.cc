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
