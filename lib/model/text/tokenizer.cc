#include "model/text/tokenizer.h"

#include <algorithm>

#include "base/json.h"
#include "model/files/mapped_file.h"

namespace mc::model {
namespace {

// Syllables are digits in base 70, so every id has a word of its own.
std::string word_of(uint32_t id) {
  constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
  constexpr auto kBase = static_cast<uint32_t>(kConsonants.size() * kVowels.size());
  std::string w;
  do {
    const uint32_t digit = id % kBase;
    w.insert(w.begin(), {kConsonants[digit / kVowels.size()], kVowels[digit % kVowels.size()]});
    id /= kBase;
  } while (id > 0);
  return " " + w;
}

}  // namespace

void Tokenizer::add_piece(std::string piece, std::string bytes, bool special) {
  if (!piece.empty()) ids_.add(piece, static_cast<int32_t>(pieces_.size()));
  pieces_.push_back(std::move(piece));
  bytes_.push_back(std::move(bytes));
  special_.push_back(special);
}

Tokenizer Tokenizer::bytes_only(uint32_t vocab) {
  Tokenizer t;
  for (uint32_t id = 0; id < vocab; ++id) {
    std::string bytes = id < 256 ? std::string(1, static_cast<char>(id)) : word_of(id);
    t.add_piece(bytes, bytes, id == kBytesEnd);
  }
  return t;
}

size_t Tokenizer::longest() const {
  if (model_ == nullptr) return vocab() >= 256 ? 1 : 0;
  if (model_->unbounded() || pre_tokenizer_.drops_text()) return 0;
  size_t most = 4;  // a character that the vocabulary lacks
  for (const std::string& b : bytes_) most = std::max(most, b.size());
  return most * normalizer_.shrinks();
}

std::string_view Tokenizer::piece(int32_t token) const {
  const auto at = static_cast<size_t>(token);
  return token >= 0 && at < pieces_.size() ? std::string_view(pieces_[at]) : std::string_view();
}

bool Tokenizer::special(int32_t token) const {
  return token >= 0 && static_cast<size_t>(token) < special_.size() &&
         special_[static_cast<size_t>(token)];
}

std::string_view Tokenizer::bytes(int32_t token) const {
  if (token < 0 || static_cast<size_t>(token) >= bytes_.size()) return {};
  return bytes_[static_cast<size_t>(token)];
}

std::optional<int32_t> Tokenizer::find(std::string_view piece) const {
  const int32_t id = ids_.find(piece);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text += bytes(token);
  if (drops_space_ && text.starts_with(' ')) text.erase(0, 1);
  if (drops_last_space_ && text.ends_with(' ')) text.pop_back();
  return text;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool begin) const {
  std::vector<int32_t> tokens;
  if (begin) tokens = before_;
  encode_parts(text, true, false, tokens);
  if (begin) tokens.insert(tokens.end(), after_.begin(), after_.end());
  return tokens;
}

std::vector<int32_t> Tokenizer::encode_marked(std::string_view text) const {
  std::vector<int32_t> tokens;
  encode_parts(text, true, true, tokens);
  return tokens;
}

void Tokenizer::encode_more(std::string_view text, std::vector<int32_t>& out) const {
  encode_parts(text, false, false, out);
}

void Tokenizer::encode_parts(std::string_view text, bool first, bool specials,
                             std::vector<int32_t>& out) const {
  for (size_t at = 0; at < text.size();) {
    MarkedTokens::Found mark{text.size(), text.size(), -1};
    if (!marks_.empty())
      if (const auto next = marks_.next(text, at, specials); next.token >= 0) mark = next;
    if (mark.begin > at) {
      const std::string_view part = text.substr(at, mark.begin - at);
      const bool begins = first && at == 0;
      if (normalizer_.empty())
        encode_normalized(part, begins, specials, out);
      else
        encode_normalized(normalizer_.apply(part), begins, specials, out);
    }
    if (mark.token >= 0) out.push_back(mark.token);
    at = mark.end;
  }
}

void Tokenizer::encode_normalized(std::string_view text, bool first, bool specials,
                                  std::vector<int32_t>& out) const {
  if (normalized_marks_.empty()) return encode_text(text, first, out);
  for (size_t at = 0; at < text.size();) {
    MarkedTokens::Found mark{text.size(), text.size(), -1};
    if (const auto next = normalized_marks_.next(text, at, specials); next.token >= 0) mark = next;
    if (mark.begin > at) encode_text(text.substr(at, mark.begin - at), first && at == 0, out);
    if (mark.token >= 0) out.push_back(mark.token);
    at = mark.end;
  }
}

void Tokenizer::encode_text(std::string_view text, bool first, std::vector<int32_t>& out) const {
  if (model_ == nullptr) {
    for (const char c : text)
      if (static_cast<unsigned char>(c) < vocab()) out.push_back(static_cast<unsigned char>(c));
    return;
  }
  Pieces pieces;
  pre_tokenizer_.split(text, first, pieces);
  for (size_t i = 0; i < pieces.spans.size(); ++i) model_->encode(pieces[i], out);
}

namespace {

Result<Tokenizer> read_tokenizer(const std::string& folder, uint32_t vocab) {
  const std::string json_path = folder + "/tokenizer.json",
                    model_path = folder + "/tokenizer.model";
  const auto json = read_json_file(json_path);
  if (!json && json.error().code != Code::kNotFound) return fail(json.error());
  if (json) {  // tokenizer.model would give other tokens than what it says
    auto t = Tokenizer::hugging_face(*json);
    if (!t) return fail(t.error().code, "%s: %s", json_path.c_str(), t.error().what.c_str());
    return t;
  }
  const auto file = MappedFile::open(model_path);
  if (!file) {
    if (file.error().code != Code::kNotFound) return fail(file.error());
    return Tokenizer::bytes_only(vocab);
  }
  const auto bytes = file->bytes();
  auto t = Tokenizer::sentencepiece({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!t) return fail(t.error().code, "%s: %s", model_path.c_str(), t.error().what.c_str());
  return t;
}

// Whether a text begins with the token for it: LLaMA's tokenizer classes go by tokenizer_config,
// others by what tokenizer.json does.
Result<std::optional<bool>> begins_texts(const Json& config) {
  MC_TRY(const std::string kind, get_string_or(config, "tokenizer_class", ""));
  const auto it = config.find("add_bos_token");
  if (!kind.starts_with("Llama") || it == config.end() || !it->is_boolean())
    return std::optional<bool>();
  return std::optional(it->get<bool>());
}

std::string bos_text(const Json& config) {
  const Json* text = member(config, "bos_token");
  if (text != nullptr && text->is_object()) text = member(*text, "content");
  return text != nullptr && text->is_string() ? text->get<std::string>() : "<s>";
}

}  // namespace

Result<Tokenizer> Tokenizer::open(const std::string& folder, uint32_t vocab) {
  MC_TRY(Tokenizer t, read_tokenizer(folder, vocab));
  const std::string config_path = folder + "/tokenizer_config.json";
  auto config = read_json_file(config_path);
  if (!config && config.error().code != Code::kNotFound) return fail(config.error());
  if (config && config->is_object() && t.style_ != Style::kBytes) {
    const auto read = begins_texts(*config);
    if (!read)
      return fail(read.error().code, "%s: %s", config_path.c_str(), read.error().what.c_str());
    const std::optional<bool> begins = *read;
    if (begins && !*begins) {
      t.bos_ = -1;
      t.before_.clear();
    } else if (begins && t.bos_ < 0) {
      t.bos_ = t.find(bos_text(*config)).value_or(-1);
      if (t.bos_ >= 0) t.before_ = {t.bos_};
    }
  }
  if (t.vocab() > vocab)
    return fail(Code::kInvalid, "%s: the tokenizer has %u tokens, the model %u", folder.c_str(),
                t.vocab(), vocab);
  return t;
}

}  // namespace mc::model
