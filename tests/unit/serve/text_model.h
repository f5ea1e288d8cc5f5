// A site whose model has a tokenizer and a chat template of its own, and no weights; its workers
// say what `says` has.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "api_site.h"
#include "base/json.h"
#include "model/tokens/text.h"
#include "serve/protocol/model_info.h"

namespace mc::serve::test {

inline constexpr const char* kTextTemplate =
    "{%- if tools -%}{% for t in tools %}[{{ t.function.name }}]{% endfor %}{%- endif -%}"
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] -%}<tool_call>{{ c.function.arguments | tojson }}"
    "{%- endfor -%}<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";

// Its folder is named `texts`: tokens are bytes, and the marks of chats.
inline std::string text_model(const std::string& jinja = kTextTemplate) {
  const std::string folder =
      std::filesystem::temp_directory_path() / strf("mc-%d", ::getpid()) / "texts";
  std::filesystem::create_directories(folder);
  Json vocab = Json::object(), added = Json::array();
  for (int byte = 0; byte < 256; ++byte)
    vocab[model::bytes_to_letters(std::string(1, static_cast<char>(byte)))] = byte;
  int next = 256;
  for (const char* mark : {"<|im_start|>", "<|im_end|>"})
    added.push_back({{"id", next++}, {"content", mark}, {"special", true}});
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  std::ofstream(folder + "/tokenizer.json")
      << dump_json({{"added_tokens", added},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", bytes},
                    {"post_processor", nullptr},
                    {"decoder", bytes},
                    {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}});
  std::ofstream(folder + "/tokenizer_config.json")
      << dump_json({{"chat_template", jinja}, {"eos_token", "<|im_end|>"}});
  return folder;
}

struct TextSite : Site {
  explicit TextSite(ConductorOptions options = patient(), const std::string& parser = "auto")
      : Site(with_model(options), {.http = "127.0.0.1:0", .tool_call_parser = parser}) {
    p[0]->then = [this](const std::string& request) {
      for (const Reserve& r : d[0]->reserved)
        if (r.request == request) asked = r;
      const auto tokens = conductor->tokenizer().encode_marked(says);
      TokenUpdate u;
      u.request = request;
      u.finish = finish;
      u.tokens = tokens;
      d[0]->client->call(TokenBatch{"d0", {u}}, 1s, [](const Result<rpc::Empty>&) {});
    };
  }
  static ConductorOptions with_model(ConductorOptions options) {
    options.choice.model = text_model();
    return options;
  }
  // Of the last request.
  std::string prompt() const {
    std::string text;
    for (const int32_t token : asked.prompt) {
      const auto& t = conductor->tokenizer();
      text += t.special(token) ? t.piece(token) : t.bytes(token);
    }
    return text;
  }
  std::string says = "hello", finish = "stop";
  Reserve asked;
};

}  // namespace mc::serve::test
