#include "model/text/chat.h"

#include <array>

#include "base/json.h"
#include "base/units.h"
#include "model/files/mapped_file.h"

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

// Of chat_template: a text, or one of a list of named texts.
std::string template_of(const Json& config, std::string_view named) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return "";
  if (it->is_string()) return named == "default" ? it->get<std::string>() : "";
  if (!it->is_array()) return "";
  for (const Json& one : *it)
    if (one.is_object() && one.value("name", Json()) == named &&
        one.value("template", Json()).is_string())
      return one["template"].get<std::string>();
  return "";
}

// "<s>", or {"content": "<s>"}.
std::string token_text(const Json& config, const char* key) {
  const Json* text = member(config, key);
  if (text != nullptr && text->is_object()) text = member(*text, "content");
  return text != nullptr && text->is_string() ? text->get<std::string>() : "";
}

std::shared_ptr<const JinjaTemplate> parsed_template(std::string_view jinja, std::string& problem) {
  auto program = JinjaTemplate::parse(jinja, "chat template");
  if (program) return std::make_shared<const JinjaTemplate>(std::move(*program));
  problem = program.error().what;
  return nullptr;
}

// The token that ends a turn of the model, by the marks of its template.
const char* end_mark(ChatTemplate kind) {
  switch (kind) {
    case ChatTemplate::kChatMl: return "<|im_end|>";
    case ChatTemplate::kLlama3: return "<|eot_id|>";
    default: return "";
  }
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

const char* name(ToolCallFormat format) {
  switch (format) {
    case ToolCallFormat::kHermes: return "hermes";
    case ToolCallFormat::kLlama3: return "llama3";
    case ToolCallFormat::kMistral: return "mistral";
    case ToolCallFormat::kQwen3Coder: return "qwen3_coder";
    case ToolCallFormat::kGlm45: return "glm45";
    case ToolCallFormat::kNone: break;
  }
  return "none";
}

ToolCallFormat recognise_calls(std::string_view jinja) {
  const auto has = [&](std::string_view mark) { return jinja.find(mark) != std::string::npos; };
  if (has("<tool_call>")) {
    if (has("<function=") && has("<parameter=")) return ToolCallFormat::kQwen3Coder;
    if (has("<tool_sep>")) return ToolCallFormat::kNone;
    if (has("<arg_key>") && has("<arg_value>")) return ToolCallFormat::kGlm45;
    const bool json = has("tojson") || has("\"name\"") || has("\\\"name\\\"");
    return json ? ToolCallFormat::kHermes : ToolCallFormat::kNone;
  }
  if (has("[TOOL_CALLS]")) return ToolCallFormat::kMistral;
  if (has("<|start_header_id|>") && (has("<|python_tag|>") || has("tool_calls")))
    return ToolCallFormat::kLlama3;
  return ToolCallFormat::kNone;
}

std::span<const std::string_view> tool_call_marks(ToolCallFormat format) {
  static constexpr std::array<std::string_view, 2> kHermes = {"<tool_call>", "</tool_call>"};
  static constexpr std::array<std::string_view, 6> kGlm45 = {
      "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
  static constexpr std::array<std::string_view, 1> kLlama3 = {"<|python_tag|>"};
  static constexpr std::array<std::string_view, 3> kMistral = {"[TOOL_CALLS]", "[ARGS]",
                                                               "[CALL_ID]"};
  switch (format) {
    case ToolCallFormat::kHermes:
    case ToolCallFormat::kQwen3Coder: return kHermes;
    case ToolCallFormat::kGlm45: return kGlm45;
    case ToolCallFormat::kLlama3: return kLlama3;
    case ToolCallFormat::kMistral: return kMistral;
    case ToolCallFormat::kNone: break;
  }
  return {};
}

const char* name(const ChatFormat& format) { return format.program ? "jinja" : name(format.kind); }

ChatFormat chat_format(std::string_view jinja, std::string_view tools, std::string bos,
                       std::string eos) {
  ChatFormat format(recognise_chat(jinja));
  format.bos = std::move(bos);
  format.eos = std::move(eos);
  if (format.kind == ChatTemplate::kPlain) return format;
  format.program = parsed_template(jinja, format.problem);
  format.calls = recognise_calls(tools.empty() ? jinja : tools);
  if (!tools.empty()) format.tools = parsed_template(tools, format.problem);
  return format;
}

Result<ChatFormat> chat_of_folder(const std::string& folder) {
  auto config = read_json_file(folder + "/tokenizer_config.json");
  if (!config && config.error().code != Code::kNotFound) return fail(config.error());
  if (!config || !config->is_object()) config = Json::object();
  std::string jinja = template_of(*config, "default");
  if (const auto file = MappedFile::open(folder + "/chat_template.jinja")) {
    const auto bytes = file->bytes();
    if (bytes.size() > kTemplateBytesMax)
      return fail(Code::kInvalid, "%s/chat_template.jinja has %zu bytes, want %zu at most",
                  folder.c_str(), bytes.size(), kTemplateBytesMax);
    jinja.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return chat_format(jinja, template_of(*config, "tool_use"), token_text(*config, "bos_token"),
                     token_text(*config, "eos_token"));
}

Result<ChatPrompt> chat_prompt(const ChatFormat& format, const Tokenizer& tokenizer, Json variables,
                               const std::tm& now, const TemplateLimits& limits) {
  variables["bos_token"] = format.bos;
  variables["eos_token"] = format.eos;
  const Json* tools = member(variables, "tools");
  const bool own = format.tools && tools != nullptr && !tools->empty();
  const JinjaTemplate& program = own ? *format.tools : *format.program;
  MC_TRY(const std::string text, program.render(variables, now, limits));
  ChatPrompt out;
  out.tokens = tokenizer.encode_marked(text);
  out.end = tokenizer.find(end_mark(format.kind));
  if (!out.end && !format.eos.empty()) out.end = tokenizer.find(format.eos);
  return out;
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
