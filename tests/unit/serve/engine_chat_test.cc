// Messages and responses as the chats that vLLM makes of them. engine_chats.json is what vLLM 0.32
// made of each: tests/nightly/chats.py wrote it, and compares it again.
#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "serve/translate/chat_request.h"
#include "serve/translate/engine_chat.h"

using namespace mc;
using namespace mc::serve;

namespace {

// In any order of members, and arguments by what they say.
nlohmann::json meaning_of(const Json& chat) {
  auto meaning = nlohmann::json::parse(dump_json(chat));
  for (auto& message : meaning["messages"])
    if (message.contains("tool_calls"))
      for (auto& call : message["tool_calls"]) {
        auto& arguments = call["function"]["arguments"];
        arguments = nlohmann::json::parse(arguments.get<std::string>());
      }
  return meaning;
}

std::optional<Json> chat_of(const char* path, const char* body) {
  return engine_chat(path, *parse_json(body));
}

}  // namespace

TEST_CASE("messages and responses are the chats that vLLM makes of them") {
  const char* const source = std::getenv("MC_SOURCE");
  const auto cases = read_json_file(std::string(source == nullptr ? "." : source) +
                                    "/tests/unit/serve/engine_chats.json");
  REQUIRE_MESSAGE(cases.has_value(), cases.error().what);
  CHECK(cases->size() >= 19);
  for (const Json& c : *cases) {
    const std::string body = dump_json(c["body"]);
    CAPTURE(body);
    const auto chat = engine_chat(c["path"].get<std::string>(), c["body"]);
    REQUIRE(chat.has_value());
    CHECK(meaning_of(*chat) == meaning_of(c["chat"]));
  }
}

TEST_CASE("what only the engine can know makes no chat") {
  CHECK(!chat_of("/v1/responses", R"({"input":"x","previous_response_id":"r"})"));
  CHECK(!chat_of("/v1/responses", R"({"input":"x","conversation":"c"})"));
  CHECK(!chat_of("/v1/responses", R"({"input":"x","tools":[{"type":"web_search"}]})"));
  CHECK(!chat_of("/v1/responses", R"({"input":[{"type":"item_reference","id":"i"}]})"));
  CHECK(!chat_of("/v1/responses", R"({"input":[{"type":"reasoning","encrypted_content":"x"}]})"));
  CHECK(!chat_of("/v1/responses",
                 R"({"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]})"));
  CHECK(!chat_of("/v1/messages", R"({"messages":[{"role":"system","content":"x"}]})"));
  CHECK(!chat_of("/v1/messages",
                 R"({"messages":[{"role":"user","content":[{"type":"document","source":{}}]}]})"));
  CHECK(!chat_of("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}]})"));
}

TEST_CASE("what is no request makes no chat, and no harm") {
  for (const char* const path : {"/v1/responses", "/v1/messages"})
    for (const char* const body :
         {"[]", "{}", "7", R"({"input":7})", R"({"input":[7]})", R"({"input":[]})",
          R"({"input":[[]]})", R"({"input":{"role":"user"}})", R"({"messages":7})",
          R"({"messages":[7]})", R"({"messages":[{"role":"user","content":7}]})",
          R"({"messages":[{"role":"user","content":[7]}]})", R"({"input":"x","tools":[7]})",
          R"({"input":[{"role":"assistant","content":[]}]})",
          R"({"input":[{"type":"function_call_output","output":7}]})",
          R"({"messages":[{"role":"user","content":"x"}],"system":7})"})
      CHECK_MESSAGE(!chat_of(path, body), path << body);
  const auto odd = chat_of("/v1/messages", R"({"messages":[{"role":"user","content":[
      {"type":"tool_result","tool_use_id":7,"content":7},
      {"type":"text","text":7}]}],"tools":[7]})");
  REQUIRE(odd.has_value());
  CHECK((*odd)["messages"].size() == 1);
}

TEST_CASE("own workers leave out the number with which Claude Code begins its system prompt") {
  const auto messages_of = [](const char* system) {
    const std::string body =
        R"({"max_tokens":8,"messages":[{"role":"user","content":"x"}],"system":)";
    return (*chat_of_messages(*parse_json(body + system + "}")))["messages"];
  };
  const char* const header = R"([{"type":"text","text":"x-anthropic-billing-header: 1;"})";
  const auto said = messages_of((std::string(header) + R"(,{"type":"text","text":"y"}])").c_str());
  REQUIRE(said.size() == 2);
  REQUIRE(said[0]["content"].size() == 1);
  CHECK(said[0]["content"][0]["text"] == "y");
  CHECK(messages_of((std::string(header) + "]").c_str()).size() == 1);
}
