#include "model/text/text_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/json.h"

namespace mc::model {
namespace {

constexpr uint64_t kContext = 131072, kContextSaidMost = 1u << 24;  // tokens: when none is said
constexpr uint32_t kVocabMost = 1u << 24;

// The first of `files` that says it, in itself or in its text_config.
uint64_t number_of(const Json& config, const char* key, uint64_t most, uint64_t otherwise) {
  for (const Json* const of : {&config, member(config, "text_config")}) {
    const Json* const n = of == nullptr ? nullptr : member(*of, key);
    if (n != nullptr && n->is_number_unsigned() && *n > 0 && *n <= most) return n->get<uint64_t>();
  }
  return otherwise;
}

Result<Json> config_file(const std::string& path) {
  auto json = read_json_file(path);
  if (!json && json.error().code != Code::kNotFound) return fail(json.error());
  return json && json->is_object() ? std::move(*json) : Json::object();
}

}  // namespace

bool has_tokenizer(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder + "/tokenizer.json", ignored) ||
         std::filesystem::exists(folder + "/tokenizer.model", ignored);
}

Result<TextFiles> open_text_files(const std::string& folder) {
  if (!has_tokenizer(folder))
    return fail(Code::kNotFound, "%s: want a tokenizer.json or a tokenizer.model in it",
                folder.c_str());
  MC_TRY(const Json config, config_file(folder + "/config.json"));
  MC_TRY(const Json texts, config_file(folder + "/tokenizer_config.json"));
  MC_TRY(Tokenizer tokenizer, Tokenizer::open(folder, kVocabMost));
  MC_TRY(ChatFormat chat, chat_of_folder(folder));
  const uint32_t pieces = tokenizer.vocab();
  TextFiles files{.name = "", .tokenizer = std::move(tokenizer), .chat = std::move(chat)};
  std::filesystem::path path(folder);
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  files.name = path.filename().string();
  files.vocab =
      std::max(pieces, static_cast<uint32_t>(number_of(config, "vocab_size", kVocabMost, pieces)));
  const uint64_t said = number_of(texts, "model_max_length", kContextSaidMost, kContext);
  files.context_max = number_of(config, "max_position_embeddings", kContextSaidMost, said);
  return files;
}

}  // namespace mc::model
