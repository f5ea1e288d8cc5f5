#include "serve/answers/openai_writer.h"

#include <utility>

#include "base/json.h"

namespace mc::serve {
namespace {

Json usage_json(const Usage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.prompt_tokens + u.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}}};
}

std::string event(const Json& json) { return "data: " + dump_json(json) + "\n\n"; }

Json message_json(const AnswerPart& part) {
  std::string text(part.text);
  Json calls = Json::array();
  for (const ToolPiece& piece : part.pieces) {
    if (piece.kind == ToolPiece::Kind::kText)
      text += piece.text;
    else if (piece.kind == ToolPiece::Kind::kCall)
      calls.push_back({{"id", piece.id},
                       {"type", "function"},
                       {"function", {{"name", piece.text}, {"arguments", ""}}}});
    else
      calls.back()["function"]["arguments"].get_ref<std::string&>() += piece.text;
  }
  Json message = {{"role", "assistant"}, {"content", std::move(text)}};
  if (calls.empty()) return message;
  if (message["content"] == "") message["content"] = nullptr;
  message["tool_calls"] = std::move(calls);
  return message;
}

}  // namespace

OpenAiWriter::OpenAiWriter(const std::string& id, std::string model, int64_t created, bool chat,
                           bool include_usage, bool continuous_usage)
    : id_((chat ? "chatcmpl-" : "cmpl-") + id),
      model_(std::move(model)),
      created_(created),
      chat_(chat),
      include_usage_(include_usage),
      continuous_usage_(continuous_usage) {}

Json OpenAiWriter::head(const char* completion, const char* chat) const {
  return {
      {"id", id_}, {"object", chat_ ? chat : completion}, {"created", created_}, {"model", model_}};
}

// By hand: a token is too little to build and take down a tree of values for.
std::string OpenAiWriter::chunk(const AnswerPart& part, const Usage& usage) {
  if (open_.empty()) {
    open_ = "data: " + dump_json(head("text_completion", "chat.completion.chunk"));
    open_.back() = ',';  // was the object's end
    open_ += R"("choices":[{"index":)";
  }
  if (begun_.size() <= part.index) begun_.resize(part.index + 1);
  std::string out;
  out.reserve(open_.size() + part.text.size() + 160);
  out += open_;
  out += std::to_string(part.index);
  if (chat_) {
    append_delta(out, part);
  } else {
    out += R"(,"text":)";
    append_quoted(out, part.text);
  }
  out += R"(,"logprobs":)";
  out += part.logprobs == nullptr ? "null" : dump_json(*part.logprobs);
  out += R"(,"finish_reason":)";
  if (part.finish.empty())
    out += "null";
  else
    append_quoted(out, part.finish);
  out += "}]";
  if (continuous_usage_)
    out += R"(,"usage":)" + dump_json(usage_json(usage));
  else if (include_usage_)
    out += R"(,"usage":null)";
  out += "}\n\n";
  begun_[part.index] = true;
  return out;
}

// The role comes with the first token, never before it: a client measures its wait by it.
void OpenAiWriter::append_delta(std::string& out, const AnswerPart& part) {
  out += R"(,"delta":{)";
  if (!begun_[part.index]) out += R"("role":"assistant",)";
  std::string text, calls;
  for (const ToolPiece& piece : part.pieces) {
    if (piece.kind == ToolPiece::Kind::kText) {
      text += piece.text;
      continue;
    }
    calls += (calls.empty() ? R"({"index":)" : R"(,{"index":)") + std::to_string(piece.call);
    if (piece.kind == ToolPiece::Kind::kCall) {
      calls += R"(,"id":)";
      append_quoted(calls, piece.id);
      calls += R"(,"type":"function","function":{"name":)";
      append_quoted(calls, piece.text);
      calls += R"(,"arguments":"")";
    } else {
      calls += R"(,"function":{"arguments":)";
      append_quoted(calls, piece.text);
    }
    calls += "}}";
  }
  if (calls.empty() || !text.empty()) {
    out += R"("content":)";
    append_quoted(out, text.empty() ? part.text : text);
    if (!calls.empty()) out += ',';
  }
  if (!calls.empty()) out += R"("tool_calls":[)" + calls + ']';
  out += '}';
}

std::string OpenAiWriter::end(const Usage& usage, const Json& mc) {
  constexpr const char* kEnd = "data: [DONE]\n\n";
  if (!include_usage_) return kEnd;
  Json j = head("text_completion", "chat.completion.chunk");
  j["choices"] = Json::array();
  j["usage"] = usage_json(usage);
  j["mc"] = mc;
  return event(j) + kEnd;
}

std::string OpenAiWriter::failed(const ApiError& error) {
  return "data: " + error_json(error) + "\n\n";
}

std::string OpenAiWriter::whole(std::span<const AnswerPart> choices, const Usage& usage,
                                const Json& mc) {
  Json j = head("text_completion", "chat.completion");
  j["choices"] = Json::array();
  for (const AnswerPart& part : choices) {
    Json choice = {{"index", part.index}};
    if (chat_)
      choice["message"] = message_json(part);
    else
      choice["text"] = part.text;
    choice["logprobs"] = part.logprobs == nullptr ? Json() : *part.logprobs;
    choice["finish_reason"] = part.finish.empty() ? Json() : Json(part.finish);
    j["choices"].push_back(std::move(choice));
  }
  j["usage"] = usage_json(usage);
  j["mc"] = mc;
  return dump_json(j);
}

}  // namespace mc::serve
