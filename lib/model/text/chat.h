// Formats a conversation as the prompt that a model was trained on: by the model's own template, a
// program in Jinja (model/template/jinja_template.h). The text that it writes becomes tokens as it
// does elsewhere: what spells a special token is one, also in a message, and nothing but the
// template begins the text.
//
// If a model names no template, messages are lines "role: content". A template that cannot be
// parsed here is recognised by its marks, and an approximation is written in which only marks
// become special tokens. If it has none of these marks, completions work and chats are refused.
//
// Errors: kInvalid for an order of roles the template cannot write; kUnsupported. Thread: values.
// Source: the chat templates of Llama 2, Llama 3, Mistral Instruct, ChatML (Qwen, SmolLM), Zephyr
// (TinyLlama).
#pragma once
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "model/template/jinja_template.h"
#include "model/text/tokenizer.h"

namespace mc::model {

struct ChatMessage {
  std::string role, content;
};

enum class ChatTemplate : uint8_t {
  kPlain,
  kLlama2,
  kMistral,
  kLlama3,
  kChatMl,
  kZephyr,
  kUnknown
};

const char* name(ChatTemplate t);
// `jinja`: the template a model names; empty: none.
ChatTemplate recognise_chat(std::string_view jinja);

// How a model writes the calls of tools in its answers.
enum class ToolCallFormat : uint8_t { kNone, kHermes, kLlama3, kMistral, kQwen3Coder, kGlm45 };
inline constexpr ToolCallFormat kToolCallFormats[] = {
    ToolCallFormat::kNone,    ToolCallFormat::kHermes,     ToolCallFormat::kLlama3,
    ToolCallFormat::kMistral, ToolCallFormat::kQwen3Coder, ToolCallFormat::kGlm45};
const char* name(ToolCallFormat format);
// By the marks of its template; kNone: there are none that are known.
ToolCallFormat recognise_calls(std::string_view jinja);
// Arguments have marks around each of them, and are no JSON.
constexpr bool calls_in_xml(ToolCallFormat format) {
  return format == ToolCallFormat::kQwen3Coder || format == ToolCallFormat::kGlm45;
}
// What a call begins with, and what else of it may be a special token.
std::span<const std::string_view> tool_call_marks(ToolCallFormat format);

// How a model's chats are written.
struct ChatFormat {
  ChatTemplate kind = ChatTemplate::kPlain;        // where there is no program
  std::shared_ptr<const JinjaTemplate> program{};  // null: none, or it could not be parsed
  std::shared_ptr<const JinjaTemplate> tools{};    // where chats with tools have one of their own
  ToolCallFormat calls = ToolCallFormat::kNone;
  std::string bos{}, eos{};  // what programs know as bos_token, eos_token
  std::string problem{};     // why the program could not be parsed

  ChatFormat() = default;
  ChatFormat(ChatTemplate t) : kind(t) {}  // NOLINT: one without a program
};
const char* name(const ChatFormat& format);

// From a model's texts; `tools` may be empty.
ChatFormat chat_format(std::string_view jinja, std::string_view tools, std::string bos,
                       std::string eos);
// Of a folder: chat_template.jinja, or chat_template in tokenizer_config.json (a text, or a list of
// named ones: default, tool_use), with its bos_token and eos_token.
Result<ChatFormat> chat_of_folder(const std::string& folder);

struct ChatPrompt {
  std::vector<int32_t> tokens;
  std::optional<int32_t> end;  // the token that ends the model's turn, where the template has one
};
// By the approximation of that kind.
Result<ChatPrompt> chat_prompt(ChatTemplate t, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages);
// By the program, with `variables` besides bos_token and eos_token: messages, tools, documents,
// add_generation_prompt and others. Errors: those of the template.
Result<ChatPrompt> chat_prompt(const ChatFormat& format, const Tokenizer& tokenizer, Json variables,
                               const std::tm& now, const TemplateLimits& limits = {});

}  // namespace mc::model
