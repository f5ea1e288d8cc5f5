#include "serve/answers/answer_writer.h"

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

}  // namespace

AnswerWriter::AnswerWriter(std::string id, std::string model, int64_t created, bool chat,
                           bool include_usage, bool continuous_usage)
    : id_((chat ? "chatcmpl-" : "cmpl-") + id),
      model_(std::move(model)),
      created_(created),
      chat_(chat),
      include_usage_(include_usage),
      continuous_usage_(continuous_usage) {}

Json AnswerWriter::head(const char* completion, const char* chat) const {
  return {
      {"id", id_}, {"object", chat_ ? chat : completion}, {"created", created_}, {"model", model_}};
}

// By hand: a token is too little to build and take down a tree of values for.
std::string AnswerWriter::chunk(const AnswerPart& part, const Usage& usage) {
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
  out += chat_ ? R"(,"delta":{)" : R"(,"text":)";
  // The role comes with the first token, never before it: a client measures its wait by it.
  if (chat_) out += begun_[part.index] ? R"("content":)" : R"("role":"assistant","content":)";
  append_quoted(out, part.text);
  out += chat_ ? R"(},"logprobs":)" : R"(,"logprobs":)";
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

std::string AnswerWriter::last(const Usage& usage, const Json& mc) const {
  if (!include_usage_) return {};
  Json j = head("text_completion", "chat.completion.chunk");
  j["choices"] = Json::array();
  j["usage"] = usage_json(usage);
  j["mc"] = mc;
  return event(j);
}

std::string AnswerWriter::whole(std::span<const AnswerPart> choices, const Usage& usage,
                                const Json& mc) const {
  Json j = head("text_completion", "chat.completion");
  j["choices"] = Json::array();
  for (const AnswerPart& part : choices) {
    Json choice = {{"index", part.index}};
    if (chat_)
      choice["message"] = {{"role", "assistant"}, {"content", part.text}};
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
