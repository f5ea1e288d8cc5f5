#include "model/text/chat.h"

#include "base/json.h"
#include "base/units.h"
#include "model/files/mapped_file.h"
#include "model/template/jinja_template.h"

namespace mc::model {
namespace {

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin));
}

class Writer {
 public:
  explicit Writer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    if (tokenizer.bos() >= 0) out_.tokens.push_back(tokenizer.bos());
  }
  void text(std::string_view t) { text_ += t; }
  // A mark: its token where the vocabulary has it, else text.
  void mark(std::string_view m) {
    const auto token = tokenizer_.find(m);
    if (!token) return text(m);
    flush();
    out_.tokens.push_back(*token);
  }
  void begin_again() {
    flush();
    if (tokenizer_.bos() >= 0) out_.tokens.push_back(tokenizer_.bos());
  }
  ChatPrompt finish(std::string_view end) {
    flush();
    out_.end = tokenizer_.find(end);
    return std::move(out_);
  }

 private:
  void flush() {
    if (fresh_ && !text_.empty()) {
      const auto tokens = tokenizer_.encode(text_, false);
      out_.tokens.insert(out_.tokens.end(), tokens.begin(), tokens.end());
    } else {
      tokenizer_.encode_more(text_, out_.tokens);
    }
    fresh_ = false;
    text_.clear();
  }
  const Tokenizer& tokenizer_;
  ChatPrompt out_;
  std::string text_;
  bool fresh_ = true;  // nothing but the beginning token was written
};

ChatPrompt unframed(Writer w, std::span<const ChatMessage> messages) {
  for (const ChatMessage& m : messages) w.text(m.role + ": " + m.content + "\n");
  w.text("assistant: ");
  return w.finish("");
}

ChatPrompt chatml(Writer w, std::span<const ChatMessage> messages) {
  for (const ChatMessage& m : messages) {
    w.mark("<|im_start|>");
    w.text(m.role + "\n" + m.content);
    w.mark("<|im_end|>");
    w.text("\n");
  }
  w.mark("<|im_start|>");
  w.text("assistant\n");
  return w.finish("<|im_end|>");
}

ChatPrompt llama3(Writer w, std::span<const ChatMessage> messages) {
  const auto header = [&](const std::string& role) {
    w.mark("<|start_header_id|>");
    w.text(role);
    w.mark("<|end_header_id|>");
    w.text("\n\n");
  };
  for (const ChatMessage& m : messages) {
    header(m.role);
    w.text(trimmed(m.content));
    w.mark("<|eot_id|>");
  }
  header("assistant");
  return w.finish("<|eot_id|>");
}

ChatPrompt zephyr(Writer w, std::span<const ChatMessage> messages) {
  for (const ChatMessage& m : messages) {
    w.mark("<|" + m.role + "|>");
    w.text("\n" + m.content);
    w.mark("</s>");
    w.text("\n");
  }
  w.mark("<|assistant|>");
  w.text("\n");
  return w.finish("</s>");
}

// Turns of user and assistant; what the system says goes into the first of the user's.
ChatPrompt instructions(Writer w, std::span<const ChatMessage> messages, bool mistral) {
  std::string system;
  bool answered = false;
  for (const ChatMessage& m : messages) {
    const std::string content = mistral ? m.content : trimmed(m.content);
    if (m.role == "system") {
      system = mistral ? content + "\n\n" : "<<SYS>>\n" + content + "\n<</SYS>>\n\n";
    } else if (m.role == "user") {
      if (answered && !mistral) w.begin_again();
      w.text("[INST] " + system + content + " [/INST]");
      system.clear();
    } else {
      w.text(" " + content + (mistral ? "" : " "));
      w.mark("</s>");
      answered = true;
    }
  }
  return w.finish("</s>");
}

Result<> check_turns(std::span<const ChatMessage> messages) {
  const char* want = "user";
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (i == 0 && role == "system") continue;
    if (role != want)
      return fail(Code::kInvalid,
                  "message %zu is of role '%s', want '%s': this model's chats are an optional "
                  "system message, then user and assistant in turns",
                  i, escape(role).c_str(), want);
    want = role == "user" ? "assistant" : "user";
  }
  if (messages.empty() || messages.back().role != "user")
    return fail(Code::kInvalid, "the last message is not of role 'user'");
  return {};
}

std::string template_of(const Json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return "";
  for (const Json& named : *it)
    if (named.is_object() && named.value("name", Json()) == "default" &&
        named.value("template", Json()).is_string())
      return named["template"].get<std::string>();
  return "";
}

}  // namespace

const char* name(ChatTemplate t) {
  switch (t) {
    case ChatTemplate::kPlain: return "plain";
    case ChatTemplate::kLlama2: return "llama2";
    case ChatTemplate::kMistral: return "mistral";
    case ChatTemplate::kLlama3: return "llama3";
    case ChatTemplate::kChatMl: return "chatml";
    case ChatTemplate::kZephyr: return "zephyr";
    case ChatTemplate::kUnknown: break;
  }
  return "unknown";
}

ChatTemplate recognise_chat(std::string_view jinja) {
  const auto has = [&](std::string_view mark) { return jinja.find(mark) != std::string::npos; };
  if (trimmed(jinja).empty()) return ChatTemplate::kPlain;
  if (has("<|im_start|>")) return ChatTemplate::kChatMl;
  if (has("<|start_header_id|>")) return ChatTemplate::kLlama3;
  if (has("[INST]")) return has("<<SYS>>") ? ChatTemplate::kLlama2 : ChatTemplate::kMistral;
  if (has("<|user|>") && has("<|assistant|>") && has("eos_token")) return ChatTemplate::kZephyr;
  return ChatTemplate::kUnknown;
}

Result<ChatTemplate> chat_of_folder(const std::string& folder) {
  const auto file = MappedFile::open(folder + "/chat_template.jinja");
  if (file) {
    const auto bytes = file->bytes();
    if (bytes.size() > kTemplateBytesMax) return ChatTemplate::kUnknown;
    return recognise_chat({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  auto config = read_json_file(folder + "/tokenizer_config.json");
  if (!config && config.error().code != Code::kNotFound) return fail(config.error());
  return recognise_chat(config && config->is_object() ? template_of(*config) : "");
}

Result<ChatPrompt> chat_prompt(ChatTemplate t, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages) {
  if (t == ChatTemplate::kLlama2 || t == ChatTemplate::kMistral) MC_TRY_(check_turns(messages));
  Writer w(tokenizer);
  switch (t) {
    case ChatTemplate::kPlain: return unframed(std::move(w), messages);
    case ChatTemplate::kLlama2: return instructions(std::move(w), messages, false);
    case ChatTemplate::kMistral: return instructions(std::move(w), messages, true);
    case ChatTemplate::kLlama3: return llama3(std::move(w), messages);
    case ChatTemplate::kChatMl: return chatml(std::move(w), messages);
    case ChatTemplate::kZephyr: return zephyr(std::move(w), messages);
    case ChatTemplate::kUnknown: break;
  }
  return fail(
      Code::kUnsupported,
      "this model's chat template is none of llama2, mistral, llama3, chatml, zephyr: write "
      "the prompt yourself and use completions");
}

}  // namespace mc::model
