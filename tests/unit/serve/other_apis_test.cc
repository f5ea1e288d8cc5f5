// Responses and Anthropic's messages, answered by own workers.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "base/json.h"
#include "text_model.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace other_apis_test {
namespace {

const std::string kCallText =
    "Let me see.<tool_call>{\"name\": \"weather\", \"arguments\": {\"town\": "
    "\"Oslo\"}}</tool_call>";
const std::string kMessage = R"({"model":"texts","max_tokens":100,"messages":[)"
                             R"({"role":"user","content":"hi"}])";
const std::string kTool = R"(,"tools":[{"name":"weather","input_schema":{"type":"object"}}])";
const std::string kFunction = R"(,"tools":[{"type":"function","name":"weather","parameters":{}}])";
const std::string kInput = R"({"model":"texts","input":"hi")";

struct Event {
  std::string name;
  Json data;
};
std::vector<Event> named_events(const std::string& stream) {
  std::vector<Event> all;
  for (size_t at = 0; (at = stream.find("event: ", at)) != std::string::npos;) {
    const size_t line = stream.find('\n', at), end = stream.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    REQUIRE(stream.substr(line, 7) == "\ndata: ");
    all.push_back({stream.substr(at + 7, line - at - 7),
                   *parse_json(stream.substr(line + 7, end - line - 7))});
    CHECK(all.back().data["type"] == all.back().name);
    at = end;
  }
  return all;
}
std::string names_of(const std::vector<Event>& all) {
  std::string names;
  for (const Event& e : all)
    if (!names.ends_with(e.name + " ")) names += e.name + " ";
  return names;
}

}  // namespace

TEST_CASE("messages: an answer, its usage, and why it ended") {
  TextSite s;
  const auto r = s.ask("/v1/messages", kMessage + R"(,"system":"be brief"})");
  REQUIRE_MESSAGE(r.status == 200, r.body);
  const auto j = *parse_json(r.body);
  CHECK(j["type"] == "message");
  CHECK(j["role"] == "assistant");
  CHECK(j["model"] == "texts");
  CHECK(j["content"] == Json::array({Json{{"type", "text"}, {"text", "hello"}}}));
  CHECK(j["stop_reason"] == "end_turn");
  CHECK(j["stop_sequence"].is_null());
  const auto& usage = j["usage"];
  CHECK(usage["input_tokens"].get<uint64_t>() + usage["cache_read_input_tokens"].get<uint64_t>() ==
        s.asked.prompt.size());
  CHECK(usage["output_tokens"] == 5);
  CHECK(s.prompt() ==
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n");
  CHECK(s.asked.max_tokens == 100);
  const auto stopped =
      *parse_json(s.ask("/v1/messages", kMessage + R"(,"stop_sequences":["x","ll"]})").body);
  CHECK(stopped["stop_reason"] == "stop_sequence");
  CHECK(stopped["stop_sequence"] == "ll");
  CHECK(stopped["content"][0]["text"] == "he");
  s.finish = "length";
  CHECK((*parse_json(s.ask("/v1/messages", kMessage + "}").body))["stop_reason"] == "max_tokens");
}

TEST_CASE("messages: streamed as message_start, blocks, message_delta and message_stop") {
  TextSite s;
  s.says = kCallText;
  const auto all = named_events(s.stream("/v1/messages", kMessage + kTool + R"(,"stream":true})"));
  CHECK(names_of(all) ==
        "message_start content_block_start content_block_delta content_block_stop "
        "content_block_start content_block_delta content_block_stop message_delta message_stop ");
  std::string text, input;
  for (const Event& e : all) {
    if (e.name != "content_block_delta") continue;
    const Json& delta = e.data["delta"];
    CHECK(e.data["index"] == (delta["type"] == "text_delta" ? 0 : 1));
    (delta["type"] == "text_delta" ? text : input) +=
        delta[delta["type"] == "text_delta" ? "text" : "partial_json"].get<std::string>();
  }
  CHECK(text == "Let me see.");
  CHECK(input == "{\"town\": \"Oslo\"}");
  CHECK(all[0].data["message"]["content"].empty());
  const Json& last = all[all.size() - 2].data;
  CHECK(last["delta"]["stop_reason"] == "tool_use");
  CHECK(last["usage"]["output_tokens"] == kCallText.size());
}

TEST_CASE("messages: tools, calls and their results, whole") {
  TextSite s;
  s.says = kCallText;
  const auto r = s.ask("/v1/messages", kMessage + kTool + "}");
  REQUIRE_MESSAGE(r.status == 200, r.body);
  const auto j = *parse_json(r.body);
  REQUIRE(j["content"].size() == 2);
  CHECK(j["content"][1]["type"] == "tool_use");
  CHECK(j["content"][1]["name"] == "weather");
  CHECK(j["content"][1]["input"] == Json{{"town", "Oslo"}});
  CHECK(j["stop_reason"] == "tool_use");
  s.says = "cold";
  const auto next =
      s.ask("/v1/messages",
            R"({"model":"texts","max_tokens":9,"messages":[{"role":"user","content":"hi"},)"
            R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},)"
            R"({"type":"tool_use","id":"c","name":"weather","input":{"town":"Oslo"}}]},)"
            R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"-3"},)"
            R"({"type":"text","text":"so?"}]}])" +
                kTool + "}");
  REQUIRE_MESSAGE(next.status == 200, next.body);
  CHECK(s.prompt().find("assistant\n<tool_call>{\"town\": \"Oslo\"}<|im_end|>\n<|im_start|>tool\n"
                        "-3<|im_end|>\n<|im_start|>user\nso?<|im_end|>") != std::string::npos);
}

TEST_CASE("messages and responses: a call that has to be made is the form of the answer") {
  TextSite s;
  s.says = kCallText.substr(kCallText.find('<'));
  for (const char* choice : {R"({"type":"any"})", R"({"type":"tool","name":"weather"})"}) {
    const auto r = s.ask("/v1/messages", kMessage + kTool + R"(,"tool_choice":)" + choice + "}");
    REQUIRE_MESSAGE(r.status == 200, r.body);
    CHECK((*parse_json(r.body))["stop_reason"] == "tool_use");
    CHECK(s.asked.constraint.kind() == model::grammar::Form::kGbnf);
  }
  for (const char* choice : {R"("required")", R"({"type":"function","name":"weather"})"}) {
    const auto r = s.ask("/v1/responses", kInput + kFunction + R"(,"tool_choice":)" + choice + "}");
    REQUIRE_MESSAGE(r.status == 200, r.body);
    CHECK(s.asked.constraint.kind() == model::grammar::Form::kGbnf);
  }
  // With a format of the text: a call or that.
  s.says = R"({"a": 1})";
  const auto text =
      s.ask("/v1/responses", kInput + kFunction + R"(,"text":{"format":{"type":"json_object"}}})");
  REQUIRE_MESSAGE(text.status == 200, text.body);
  CHECK(s.asked.constraint.text.find("calls | answer") != std::string::npos);
}

TEST_CASE("messages: errors are in the form of their API, and name what is not done") {
  TextSite s;
  const auto error = [&](const std::string& body, const std::string& about) {
    const auto r = s.ask("/v1/messages", body);
    CHECK_MESSAGE(r.status == 400, r.body);
    const auto j = *parse_json(r.body);
    CHECK(j["type"] == "error");
    CHECK(j["error"]["type"] == "invalid_request_error");
    CHECK_MESSAGE(j["error"]["message"].get<std::string>().find(about) != std::string::npos,
                  r.body);
  };
  error(R"({"model":"texts","messages":[{"role":"user","content":"hi"}]})", "max_tokens");
  error(R"({"model":"texts","max_tokens":1})", "messages");
  error(kMessage + R"(,"thinking":{"type":"enabled","budget_tokens":1024}})", "thinking");
  error(kMessage + R"(,"mcp_servers":[{}]})", "mcp_servers");
  error(kMessage + R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}]})",
        "web_search");
  error(kMessage + kTool + R"(,"tool_choice":{"type":"tool","name":"none"}})", "none");
  error(kMessage + R"(,"tool_choice":{"type":"any"}})", "tool_choice");
  error(kMessage + kTool + R"(,"tool_choice":{"type":"tool"}})", "without a 'name'");
  error(kMessage + R"(,"stop_sequences":[""]})", "stop_sequences");
  error(R"({"model":"texts","max_tokens":1,"messages":[{"role":"user","content":[)"
        R"({"type":"image","source":{}}]}]})",
        "image");
  error(R"({"model":"texts","max_tokens":1,"messages":[{"role":"user","content":"a"},)"
        R"({"role":"assistant","content":"b"}]})",
        "assistant");
  const auto r = s.ask("/v1/messages", R"({"model":"none","max_tokens":1,"messages":[]})");
  CHECK((*parse_json(r.body))["type"] == "error");
}

TEST_CASE("responses: an answer with its items, usage and what it was asked") {
  TextSite s;
  const auto r = s.ask("/v1/responses", kInput + R"(,"instructions":"be brief","temperature":0,)"
                                                 R"("max_output_tokens":50,"metadata":{"a":"b"}})");
  REQUIRE_MESSAGE(r.status == 200, r.body);
  const auto j = *parse_json(r.body);
  CHECK(j["object"] == "response");
  CHECK(j["status"] == "completed");
  CHECK(j["instructions"] == "be brief");
  CHECK(j["metadata"]["a"] == "b");
  CHECK(j["max_output_tokens"] == 50);
  CHECK(j["store"] == false);
  REQUIRE(j["output"].size() == 1);
  CHECK(j["output"][0]["role"] == "assistant");
  CHECK(j["output"][0]["content"][0]["type"] == "output_text");
  CHECK(j["output"][0]["content"][0]["text"] == "hello");
  CHECK(j["usage"]["input_tokens"] == s.asked.prompt.size());
  CHECK(j["usage"]["output_tokens"] == 5);
  CHECK(s.asked.max_tokens == 50);
  CHECK(s.prompt().starts_with("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi"));
  s.finish = "length";
  const auto cut = *parse_json(s.ask("/v1/responses", kInput + "}").body);
  CHECK(cut["status"] == "incomplete");
  CHECK(cut["incomplete_details"]["reason"] == "max_output_tokens");
}

TEST_CASE("responses: streamed from response.created to response.completed, numbered") {
  TextSite s;
  s.says = kCallText;
  const auto all =
      named_events(s.stream("/v1/responses", kInput + kFunction + R"(,"stream":true})"));
  CHECK(names_of(all) ==
        "response.created response.in_progress response.output_item.added "
        "response.content_part.added response.output_text.delta response.output_text.done "
        "response.content_part.done response.output_item.done response.output_item.added "
        "response.function_call_arguments.delta response.function_call_arguments.done "
        "response.output_item.done response.completed ");
  for (size_t i = 0; i < all.size(); ++i) CHECK(all[i].data["sequence_number"] == i);
  std::string text, arguments;
  for (const Event& e : all) {
    if (e.name == "response.output_text.delta") text += e.data["delta"].get<std::string>();
    if (e.name == "response.function_call_arguments.delta")
      arguments += e.data["delta"].get<std::string>();
  }
  CHECK(text == "Let me see.");
  CHECK(arguments == "{\"town\": \"Oslo\"}");
  const Json& output = all.back().data["response"]["output"];
  REQUIRE(output.size() == 2);
  CHECK(output[0]["content"][0]["text"] == text);
  CHECK(output[1]["type"] == "function_call");
  CHECK(output[1]["name"] == "weather");
  CHECK(output[1]["arguments"] == arguments);
  CHECK(output[1]["call_id"].get<std::string>().starts_with("call_"));
  CHECK(all.back().data["response"]["usage"]["output_tokens"] == kCallText.size());
}

TEST_CASE("responses: items of a conversation, with calls and their outputs") {
  TextSite s;
  const auto r =
      s.ask("/v1/responses",
            R"({"model":"texts","input":[{"role":"developer","content":"d"},)"
            R"({"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},)"
            R"({"type":"reasoning","id":"r","summary":[]},)"
            R"({"type":"function_call","call_id":"c","name":"weather",)"
            R"("arguments":"{\"town\":\"Oslo\"}"},)"
            R"({"type":"function_call_output","call_id":"c","output":"-3"}])" +
                kFunction + "}");
  REQUIRE_MESSAGE(r.status == 200, r.body);
  CHECK(s.prompt() ==
        "[weather]<|im_start|>system\nd<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>{\"town\": \"Oslo\"}<|im_end|>\n"
        "<|im_start|>tool\n-3<|im_end|>\n<|im_start|>assistant\n");
}

TEST_CASE("responses: what own workers do not do is a 400 that names it") {
  TextSite s;
  const auto param = [&](const std::string& members) {
    const auto r = s.ask("/v1/responses", kInput + members + "}");
    CHECK_MESSAGE(r.status == 400, r.body);
    return (*parse_json(r.body))["error"]["param"].get<std::string>();
  };
  CHECK(param(R"(,"previous_response_id":"resp_1")") == "previous_response_id");
  CHECK(param(R"(,"conversation":"c")") == "conversation");
  CHECK(param(R"(,"background":true)") == "background");
  CHECK(param(R"(,"reasoning":{"effort":"high"})") == "reasoning");
  CHECK(param(R"(,"truncation":"auto")") == "truncation");
  CHECK(param(R"(,"tools":[{"type":"web_search"}])") == "tools");
  CHECK(param(R"(,"max_output_tokens":0)") == "max_output_tokens");
  CHECK(param(R"(,"top_logprobs":3)") == "top_logprobs");
  const auto r = s.ask("/v1/responses", R"({"model":"texts","input":[{"type":"item_reference"}]})");
  CHECK((*parse_json(r.body))["error"]["param"] == "input");
  CHECK(
      s.ask("/v1/responses", kInput + R"(,"store":true,"background":false,"include":[]})").status ==
      200);
}

TEST_CASE(
    "messages: a key may come as x-api-key, and one that is unknown is refused in their form") {
  const std::string path = text_model() + "/keys.json";
  std::ofstream(path) << R"({"tenants":[{"name":"a","keys":["key-of-tenant-a"]}]})";
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  Site s(patient(), {.http = "127.0.0.1:0", .api_keys = path});
  const char* const ask =
      R"({"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"x"}]})";
  s.headers.push_back({"x-api-key", "key-of-tenant-a"});
  CHECK(s.ask("/v1/messages", ask).status == 200);
  s.headers.back().second = "key-of-nobody";
  const auto r = s.ask("/v1/messages", ask);
  CHECK(r.status == 401);
  CHECK((*parse_json(r.body))["error"]["type"] == "authentication_error");
}

TEST_CASE("render: what the model sees of each kind of request, in vLLM's form") {
  TextSite s;
  const auto rendered = [&](const std::string& path, const std::string& body) {
    const auto r = s.ask(path, body);
    REQUIRE_MESSAGE(r.status == 200, r.body);
    return *parse_json(r.body);
  };
  const auto chat = rendered("/v1/chat/completions/render",
                             R"({"model":"texts","messages":[{"role":"user","content":"hi"}],)"
                             R"("max_tokens":7,"temperature":0.5})");
  CHECK(chat["sampling_params"]["max_tokens"] == 7);
  CHECK(chat["sampling_params"]["temperature"] == 0.5);
  CHECK(chat["model"] == "texts");
  (void)s.ask("/v1/chat/completions",
              R"({"model":"texts","messages":[{"role":"user","content":"hi"}]})");
  CHECK(chat["token_ids"].get<std::vector<int32_t>>() == s.asked.prompt);
  CHECK(rendered("/v1/messages/render", kMessage + "}")["token_ids"] == chat["token_ids"]);
  CHECK(rendered("/v1/responses/render", kInput + "}")["token_ids"] == chat["token_ids"]);
  CHECK(rendered("/v1/messages/count_tokens",
                 R"({"model":"texts","messages":[{"role":"user","content":"hi"}]})") ==
        Json{{"input_tokens", chat["token_ids"].size()}});
  const auto prompts =
      rendered("/v1/completions/render", R"({"model":"texts","prompt":["ab","c"]})");
  REQUIRE(prompts.size() == 2);
  CHECK(prompts[0]["token_ids"].size() == 2);
  CHECK(prompts[1]["token_ids"].size() == 1);
  CHECK(prompts[0]["request_id"] != prompts[1]["request_id"]);
  CHECK(s.ask("/v1/completions/render", R"({"model":"texts","prompt":""})").status == 400);
  CHECK((*parse_json(s.ask("/v1/messages/render", "{}").body))["type"] == "error");
}

TEST_CASE("embeddings and the like: without engines a 404 says that these answer them") {
  TextSite s;
  const auto r = s.ask("/v1/embeddings", R"({"model":"texts","input":"x"})");
  CHECK(r.status == 404);
  CHECK(r.body.find("external engines") != std::string::npos);
}

TEST_CASE("F88: a folder with a tokenizer alone is a model to route for") {
  EngineChoice choice;
  choice.model = text_model();
  const auto info = open_model_info(choice);
  REQUIRE_MESSAGE(info, info.error().what);
  CHECK(info->spec.name == "texts");
  CHECK(info->spec.vocab == 258);
  CHECK(info->spec.context_max == 131072);
  CHECK(info->chat.program);
  CHECK(info->tokenizer.encode("abc").size() == 3);
  const std::string config = choice.model + "/config.json";
  std::ofstream(config) << R"({"architectures":["Other"],"text_config":)"
                           R"({"max_position_embeddings":4096,"vocab_size":300}})";
  const auto other = open_model_info(choice);
  std::filesystem::remove(config);
  REQUIRE_MESSAGE(other, other.error().what);
  CHECK(other->spec.context_max == 4096);
  CHECK(other->spec.vocab == 300);
  choice.engine = "cpu";
  CHECK_FALSE(open_model_info(choice));
}

}  // namespace other_apis_test
