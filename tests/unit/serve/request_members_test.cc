// Each member of a request is read, refused by its name, or told as one that had no effect.
#include "serve/request/request_members.h"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "api_site.h"
#include "base/json.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace request_members_test {
namespace {

const std::map<Api, std::string> kPaths = {{Api::kCompletions, "/v1/completions"},
                                           {Api::kChats, "/v1/chat/completions"},
                                           {Api::kResponses, "/v1/responses"},
                                           {Api::kMessages, "/v1/messages"}};

// A request that is right.
Json right(Api api) {
  const Json chat = Json::array({{{"role", "user"}, {"content", "x"}}});
  if (api == Api::kCompletions) return {{"model", "tiny"}, {"prompt", "x"}};
  if (api == Api::kResponses) return {{"model", "tiny"}, {"input", "x"}};
  return {{"model", "tiny"}, {"messages", chat}, {"max_tokens", 4}};
}

struct Parse {
  Site s;
  ApiLimits limits = limits_of(s.conductor->tokenizer(), "tiny", 4096, 300, {});
  tl::expected<CompletionRequest, ApiError> operator()(Api api, const std::string& name,
                                                       const Json& value) {
    Json body = right(api);
    if (name == "stream_options") body["stream"] = true;
    body[name] = value;
    return parse_generation(kPaths.at(api), dump_json(body), limits);
  }
};

}  // namespace

TEST_CASE("members that are done or refused never pass unread, and no others are") {
  Parse parse;
  const Json wrong = Json::array({Json::object({{"no", "such"}})});  // of no member's type
  for (const auto& entry : kPaths) {
    const Api api = entry.first;
    CAPTURE(entry.second);
    for (const std::string_view known : known_members(api)) {
      const std::string name(known);
      CAPTURE(name);
      const auto parsed = parse(api, name, wrong);
      if (fate_of(name, api) == MemberFate::kNoEffect) {
        REQUIRE_MESSAGE(parsed, parsed.error().message);
        CHECK(parsed->ignored == name);
        continue;
      }
      const bool free = name == "metadata" || (name == "tools" && api == Api::kMessages);
      if (free && parsed) continue;  // any value is repeated
      REQUIRE_FALSE(parsed);
      CHECK(parsed.error().status == 400);
      CHECK(parsed.error().param == name);
    }
  }
}

TEST_CASE("what asks for nothing is let be") {
  Parse parse;
  for (const auto& entry : kPaths) {
    const Api api = entry.first;
    CAPTURE(entry.second);
    for (const std::string_view known : known_members(api)) {
      const std::string name(known);
      CAPTURE(name);
      if (right(api).contains(name)) continue;
      const auto parsed = parse(api, name, nullptr);
      REQUIRE_MESSAGE(parsed, parsed.error().message);
      CHECK(parsed->ignored.empty());
    }
  }
  for (const auto& [name, value] : std::map<std::string, Json>{{"n", 1},
                                                               {"length_penalty", 1},
                                                               {"skip_special_tokens", true},
                                                               {"store", false},
                                                               {"service_tier", "auto"},
                                                               {"verbosity", "medium"},
                                                               {"tool_choice", "auto"}}) {
    const std::string asked = name;
    CAPTURE(asked);
    const auto parsed = parse(Api::kChats, name, value);
    REQUIRE_MESSAGE(parsed, parsed.error().message);
    CHECK(parsed->ignored.empty());
  }
}

TEST_CASE("what clients send for reasoning models has no effect on others, and is named") {
  Parse parse;
  for (const char* const name : {"reasoning_effort", "verbosity"}) {
    const auto parsed = parse(Api::kChats, name, "high");
    REQUIRE_MESSAGE(parsed, parsed.error().message);
    CHECK(parsed->ignored == name);
  }
}

TEST_CASE("an answer names the members that had no effect, whatever they are called") {
  Site s;
  const std::string many = R"({"model":"tiny","prompt":"x","max_token":4,"metadata":{"a":1},)"
                           R"("a b":1,)"
                           R"("\u0007\r\nx":2,"user":"u","stream_interval":3)";
  auto r = s.ask("/v1/completions", many + "}");
  CHECK(r.status == 200);
  CHECK(r.headers.at("x-mc-ignored") == "max_token, metadata, ?, ?, stream_interval");
  r = s.ask("/v1/completions", many + R"(,"stream":true})");
  CHECK(r.headers.at("x-mc-ignored") == "max_token, metadata, ?, ?, stream_interval");
  r = s.ask("/v1/completions", R"({"model":"tiny","prompt":"x"})");
  CHECK_FALSE(r.headers.contains("x-mc-ignored"));
  std::string body = R"({"model":"tiny","prompt":"x")";
  for (int i = 0; i < 100; ++i) body += ",\"z" + std::to_string(i) + "\":1";
  r = s.ask("/v1/completions", body + "}");
  CHECK(r.headers.at("x-mc-ignored").ends_with(", .."));
  CHECK(r.headers.at("x-mc-ignored").size() < 200);
  // So do the answers that have no text.
  const std::pair<const char*, const char*> others[] = {
      {"/tokenize", R"("prompt":"x","media_io_kwargs":{"a":1})"},
      {"/detokenize", R"("tokens":[1],"media_io_kwargs":{"a":1})"},
      {"/v1/completions/render", R"("prompt":"x","media_io_kwargs":{"a":1})"},
      {"/v1/messages/count_tokens",
       R"("messages":[{"role":"user","content":"x"}],"media_io_kwargs":{"a":1})"}};
  for (const auto& other : others) {
    CAPTURE(other.first);
    const std::string members = other.second, begin = R"({"model":"tiny",)";
    r = s.ask(other.first, begin + members + R"(,"max_token":1})");
    CHECK(r.status == 200);
    CHECK(r.headers.at("x-mc-ignored") == "media_io_kwargs, max_token");
    const std::string plain = members.substr(0, members.find(",\"media"));
    CHECK_FALSE(s.ask(other.first, begin + plain + "}").headers.contains("x-mc-ignored"));
  }
}

TEST_CASE("tokenize refuses what would change its tokens") {
  Site s;
  for (const char* const member : {R"("chat_template":"x")", R"("continue_final_message":true)",
                                   R"("return_token_strs":true)"}) {
    CAPTURE(std::string(member));
    const auto r = s.ask("/tokenize", std::string(R"({"prompt":"x",)") + member + "}");
    CHECK(r.status == 400);
    CHECK(r.body.find("is not supported") != std::string::npos);
  }
}

}  // namespace request_members_test
