// Formats a conversation as the prompt that a model was trained on. It has the templates in common
// use and recognises one by the marks in the model's own template (a Jinja program in
// tokenizer_config.json, which is not run).
//
// A mark that is one token of the vocabulary becomes that token, and only from here: the text of a
// message never does. If a model names no template, messages are lines "role: content". If a
// template is not recognised, completions work and chats are refused.
//
// Errors: kInvalid for an order of roles the template cannot write; kUnsupported. Thread: values.
// Source: the chat templates of Llama 2, Llama 3, Mistral Instruct, ChatML (Qwen, SmolLM), Zephyr
// (TinyLlama).
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
// Of a folder: chat_template in tokenizer_config.json (a text, or a list with one named "default"),
// or the file chat_template.jinja.
Result<ChatTemplate> chat_of_folder(const std::string& folder);

struct ChatPrompt {
  std::vector<int32_t> tokens;
  std::optional<int32_t> end;  // the token that ends the model's turn, where the template has one
};
Result<ChatPrompt> chat_prompt(ChatTemplate t, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages);

}  // namespace mc::model
