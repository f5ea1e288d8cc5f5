#include "serve/answers/messages_writer.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace mc::serve {
namespace {

const char* messages_error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string message_event(const char* type, Json members) {
  Json event = {{"type", type}};
  event.update(members);
  return std::string("event: ") + type + "\ndata: " + dump_json(event) + "\n\n";
}

// Here input_tokens are without those that were cached.
Json messages_usage(const Usage& u) {
  return {{"input_tokens", u.prompt_tokens - std::min(u.prompt_tokens, u.cached_tokens)},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.cached_tokens},
          {"output_tokens", u.completion_tokens}};
}

Json stop_reason(std::string_view finish, std::string_view stop) {
  if (!stop.empty()) return "stop_sequence";
  if (finish == "tool_calls") return "tool_use";
  if (finish == "length") return "max_tokens";
  return finish.empty() ? Json() : Json("end_turn");
}

// What a model leaves unfinished is no object: its text then.
Json input_json(const std::string& arguments) {
  auto parsed = parse_json(arguments);
  return parsed ? std::move(*parsed) : Json(arguments);
}

Json content_json(const AnswerPart& part) {
  Json content = Json::array();
  std::string text(part.text), arguments;
  const auto end_text = [&] {
    if (!text.empty()) content.push_back({{"type", "text"}, {"text", std::exchange(text, {})}});
  };
  const auto end_call = [&] {
    if (content.empty() || content.back()["type"] != "tool_use") return;
    if (!arguments.empty()) content.back()["input"] = input_json(std::exchange(arguments, {}));
  };
  for (const ToolPiece& piece : part.pieces) {
    switch (piece.kind) {
      case ToolPiece::Kind::kText: text += piece.text; break;
      case ToolPiece::Kind::kArguments: arguments += piece.text; break;
      case ToolPiece::Kind::kCall:
        end_call();
        end_text();
        content.push_back({{"type", "tool_use"},
                           {"id", piece.id},
                           {"name", piece.text},
                           {"input", Json::object()}});
    }
  }
  end_call();
  end_text();
  return content;
}

}  // namespace

std::string messages_error_json(const ApiError& e) {
  std::string message = e.message;
  if (!e.param.empty() && message.find(e.param) == std::string::npos)
    message = e.param + ": " + message;
  return dump_json({{"type", "error"},
                    {"error", {{"type", messages_error_type(e.status)}, {"message", message}}}});
}

Json MessagesWriter::message(const Usage& usage) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_},
          {"content", Json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", messages_usage(usage)}};
}

void MessagesWriter::open(std::string& out, bool text, Json block) {
  close(out);
  open_ = true;
  in_text_ = text;
  out += message_event("content_block_start",
                       {{"index", ++index_}, {"content_block", std::move(block)}});
}

void MessagesWriter::close(std::string& out) {
  if (open_) out += message_event("content_block_stop", {{"index", index_}});
  open_ = in_text_ = false;
}

void MessagesWriter::delta(std::string& out, const char* type, const char* key,
                           std::string_view text) const {
  out += message_event("content_block_delta",
                       {{"index", index_}, {"delta", {{"type", type}, {key, text}}}});
}

std::string MessagesWriter::chunk(const AnswerPart& part, const Usage& usage) {
  std::string out;
  if (!begun_) out += message_event("message_start", {{"message", message(usage)}});
  begun_ = true;
  const auto say = [&](std::string_view text) {
    if (text.empty()) return;
    if (!in_text_) open(out, true, {{"type", "text"}, {"text", ""}});
    delta(out, "text_delta", "text", text);
  };
  say(part.text);
  for (const ToolPiece& piece : part.pieces) {
    switch (piece.kind) {
      case ToolPiece::Kind::kText: say(piece.text); break;
      case ToolPiece::Kind::kCall:
        open(out, false,
             {{"type", "tool_use"},
              {"id", piece.id},
              {"name", piece.text},
              {"input", Json::object()}});
        break;
      case ToolPiece::Kind::kArguments: delta(out, "input_json_delta", "partial_json", piece.text);
    }
  }
  if (!part.finish.empty()) finish_ = part.finish;
  if (!part.stop.empty()) stop_ = part.stop;
  return out;
}

std::string MessagesWriter::end(const Usage& usage, const Json& mc) {
  std::string out;
  close(out);
  const Json delta = {{"stop_reason", stop_reason(finish_, stop_)},
                      {"stop_sequence", stop_.empty() ? Json() : Json(stop_)}};
  out += message_event("message_delta",
                       {{"delta", delta}, {"usage", messages_usage(usage)}, {"mc", mc}});
  return out + message_event("message_stop", Json::object());
}

std::string MessagesWriter::failed(const ApiError& error) {
  return "event: error\ndata: " + messages_error_json(error) + "\n\n";
}

std::string MessagesWriter::whole(std::span<const AnswerPart> choices, const Usage& usage,
                                  const Json& mc) {
  const AnswerPart& part = choices[0];
  Json j = message(usage);
  j["content"] = content_json(part);
  j["stop_reason"] = stop_reason(part.finish, part.stop);
  if (!part.stop.empty()) j["stop_sequence"] = part.stop;
  j["mc"] = mc;
  return dump_json(j);
}

}  // namespace mc::serve
