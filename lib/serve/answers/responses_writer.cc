#include "serve/answers/responses_writer.h"

#include <utility>

#include "base/json.h"

namespace mc::serve {
namespace {

Json text_part(std::string_view text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
}

}  // namespace

std::string response_echo(const Json& request) {
  Json echo = {{"instructions", nullptr},
               {"max_output_tokens", nullptr},
               {"metadata", Json::object()},
               {"parallel_tool_calls", true},
               {"temperature", 1.0},
               {"text", {{"format", {{"type", "text"}}}}},
               {"tool_choice", "auto"},
               {"tools", Json::array()},
               {"top_p", 1.0}};
  for (auto& [name, value] : echo.get_ref<Json::object_t&>())
    if (const Json* const said = member(request, name.c_str())) value = *said;
  return dump_json(echo);
}

std::string ResponsesWriter::item_id() const {
  return (open_ == Open::kCall ? "fc_" : "msg_") + id_ + "_" + std::to_string(items_);
}

Json ResponsesWriter::item(const char* status) const {
  if (open_ == Open::kCall)
    return {{"id", item_id()},  {"type", "function_call"}, {"status", status},
            {"call_id", call_}, {"name", name_},           {"arguments", text_}};
  Json content = Json::array();
  if (std::string_view(status) != "in_progress") content.push_back(text_part(text_));
  return {{"id", item_id()},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

Json ResponsesWriter::response(const char* status) const {
  Json j = {{"id", "resp_" + id_},
            {"object", "response"},
            {"created_at", created_},
            {"status", status},
            {"background", false},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"model", model_},
            {"output", Json::array()},
            {"previous_response_id", nullptr},
            {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
            {"store", false},
            {"truncation", "disabled"},
            {"usage", nullptr}};
  if (const auto echo = parse_json(echo_); echo && echo->is_object()) j.update(*echo);
  return j;
}

Json ResponsesWriter::ended(const Usage& u, const Json& mc) const {
  const bool cut = finish_ == "length";
  Json j = response(cut ? "incomplete" : "completed");
  if (cut) j["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (auto output = parse_json("[" + output_ + "]", kJsonFile)) j["output"] = std::move(*output);
  j["usage"] = {{"input_tokens", u.prompt_tokens},
                {"input_tokens_details", {{"cached_tokens", u.cached_tokens}}},
                {"output_tokens", u.completion_tokens},
                {"output_tokens_details", {{"reasoning_tokens", 0}}},
                {"total_tokens", u.prompt_tokens + u.completion_tokens}};
  j["mc"] = mc;
  return j;
}

std::string ResponsesWriter::event(const char* type, const Json& members) {
  Json j = {{"type", type}, {"sequence_number", sequence_++}};
  j.update(members);
  return std::string("event: ") + type + "\ndata: " + dump_json(j) + "\n\n";
}

void ResponsesWriter::say(std::string& out, std::string_view text) {
  if (text.empty()) return;
  if (open_ != Open::kText) {
    close(out);
    open_ = Open::kText;
    out += event("response.output_item.added",
                 {{"output_index", items_}, {"item", item("in_progress")}});
    out += event("response.content_part.added", {{"item_id", item_id()},
                                                 {"output_index", items_},
                                                 {"content_index", 0},
                                                 {"part", text_part("")}});
  }
  text_ += text;
  out += event("response.output_text.delta", {{"item_id", item_id()},
                                              {"output_index", items_},
                                              {"content_index", 0},
                                              {"delta", text},
                                              {"logprobs", Json::array()}});
}

void ResponsesWriter::open_call(std::string& out, const ToolPiece& piece) {
  close(out);
  open_ = Open::kCall;
  call_ = piece.id;
  name_ = piece.text;
  out += event("response.output_item.added",
               {{"output_index", items_}, {"item", item("in_progress")}});
}

void ResponsesWriter::close(std::string& out) {
  if (open_ == Open::kNone) return;
  const Json id = item_id();
  if (open_ == Open::kText) {
    out += event("response.output_text.done", {{"item_id", id},
                                               {"output_index", items_},
                                               {"content_index", 0},
                                               {"text", text_},
                                               {"logprobs", Json::array()}});
    out += event("response.content_part.done", {{"item_id", id},
                                                {"output_index", items_},
                                                {"content_index", 0},
                                                {"part", text_part(text_)}});
  } else {
    out +=
        event("response.function_call_arguments.done",
              {{"item_id", id}, {"output_index", items_}, {"name", name_}, {"arguments", text_}});
  }
  const Json done = item(finish_ == "length" ? "incomplete" : "completed");
  out += event("response.output_item.done", {{"output_index", items_}, {"item", done}});
  output_ += (output_.empty() ? "" : ",") + dump_json(done);
  ++items_;
  open_ = Open::kNone;
  text_.clear();
}

std::string ResponsesWriter::take(const AnswerPart& part) {
  std::string out;
  say(out, part.text);
  for (const ToolPiece& piece : part.pieces) {
    if (piece.kind == ToolPiece::Kind::kText) {
      say(out, piece.text);
    } else if (piece.kind == ToolPiece::Kind::kCall) {
      open_call(out, piece);
    } else {
      text_ += piece.text;
      out += event("response.function_call_arguments.delta",
                   {{"item_id", item_id()}, {"output_index", items_}, {"delta", piece.text}});
    }
  }
  if (!part.finish.empty()) finish_ = part.finish;
  return out;
}

std::string ResponsesWriter::chunk(const AnswerPart& part, const Usage&) {
  std::string out;
  if (!begun_) {
    out += event("response.created", {{"response", response("in_progress")}});
    out += event("response.in_progress", {{"response", response("in_progress")}});
  }
  begun_ = true;
  return out + take(part);
}

std::string ResponsesWriter::end(const Usage& usage, const Json& mc) {
  std::string out;
  if (open_ == Open::kNone && items_ == 0) open_ = Open::kText;  // said nothing
  close(out);
  const Json last = ended(usage, mc);
  return out + event(finish_ == "length" ? "response.incomplete" : "response.completed",
                     {{"response", last}});
}

std::string ResponsesWriter::failed(const ApiError& error) {
  Json j = response("failed");
  j["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                {"message", error.message}};
  return event("response.failed", {{"response", j}});
}

std::string ResponsesWriter::whole(std::span<const AnswerPart> choices, const Usage& usage,
                                   const Json& mc) {
  std::string events = take(choices[0]);
  if (open_ == Open::kNone && items_ == 0) open_ = Open::kText;
  close(events);
  return dump_json(ended(usage, mc));
}

}  // namespace mc::serve
