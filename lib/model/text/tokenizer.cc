#include "model/text/tokenizer.h"

#include <algorithm>
#include <queue>

#include "base/json.h"
#include "model/files/mapped_file.h"
#include "model/text/text.h"
#include "model/text/unicode.h"

namespace mc::model {
namespace {

constexpr char kPartsBorder = '\xFF';  // in no UTF-8

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

// A run of the word's bytes; joined ones leave their right half empty.
struct Tokenizer::Symbol {
  size_t at = 0, size = 0;
  ptrdiff_t left = -1, right = -1;
};

void Tokenizer::add_piece(std::string piece, std::string bytes, bool special) {
  ids_.emplace(piece, static_cast<int32_t>(pieces_.size()));
  pieces_.push_back(std::move(piece));
  bytes_.push_back(std::move(bytes));
  special_.push_back(special);
}

Tokenizer Tokenizer::bytes_only(uint32_t vocab) {
  Tokenizer t;
  for (uint32_t id = 0; id < vocab; ++id) {
    std::string bytes = id < 256 ? std::string(1, static_cast<char>(id)) : word_of(id);
    t.add_piece(bytes, bytes, false);
  }
  return t;
}

size_t Tokenizer::longest() const {
  if (style_ == Style::kBytes) return vocab() >= 256 ? 1 : 0;
  // Runs of spaces become one, and so may runs of characters that the vocabulary lacks.
  const bool drops = byte_tokens_.empty() && !byte_level_ && (unknown_ < 0 || fuse_unknown_);
  if (collapse_spaces_ || drops) return 0;
  size_t most = 4;  // a character that the vocabulary lacks
  for (const std::string& b : bytes_) most = std::max(most, b.size());
  return compose_ ? 4 * most : most;  // composing shortens a text to a fourth at most
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
  const auto it = ids_.find(std::string(piece));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) text += bytes(token);
  if (adds_space() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string Tokenizer::prepare(std::string_view text, bool first) const {
  std::string out;
  const std::string_view space = mark_spaces_ ? kSpaceMark : " ";
  if (collapse_spaces_) {
    while (text.ends_with(' ')) text.remove_suffix(1);
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  const bool bare = text.starts_with(' ') || (mark_spaces_ && text.starts_with(kSpaceMark));
  if (prefix_space_ && !text.empty() && !(prefix_bare_ && bare) && (first || !prefix_first_))
    out += space;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ' ')
      out += text[i];
    else if (!collapse_spaces_ || i == 0 || text[i - 1] != ' ')
      out += space;
  }
  return out;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool begin) const {
  std::vector<int32_t> tokens;
  if (begin && bos_ >= 0) tokens.push_back(bos_);
  encode_parts(text, true, added_, tokens);
  return tokens;
}

std::vector<int32_t> Tokenizer::encode_marked(std::string_view text) const {
  std::vector<int32_t> tokens;
  encode_parts(text, true, marks_, tokens);
  return tokens;
}

void Tokenizer::encode_more(std::string_view text, std::vector<int32_t>& out) const {
  encode_parts(text, false, added_, out);
}

void Tokenizer::encode_parts(std::string_view text, bool first, const MarkedTokens& marks,
                             std::vector<int32_t>& out) const {
  constexpr std::string_view kWhite = " \t\r\n\v\f";
  size_t begin = 0;
  for (size_t i = 0; !marks.empty() && i < text.size(); ++i) {
    const MarkedTokens::Mark* const mark = marks.at(text.substr(i));
    if (mark == nullptr) continue;
    std::string_view before = text.substr(begin, i - begin);
    if (mark->takes_left) before = before.substr(0, before.find_last_not_of(kWhite) + 1);
    encode_text(before, first && begin == 0, out);
    out.push_back(mark->token);
    begin = i + mark->text.size();
    if (mark->takes_right) begin = std::min(text.find_first_not_of(kWhite, begin), text.size());
    i = begin - 1;
  }
  encode_text(text.substr(begin), first && begin == 0, out);
}

void Tokenizer::encode_text(std::string_view text, bool first, std::vector<int32_t>& out) const {
  if (text.empty()) return;
  if (style_ == Style::kBytes) {
    for (const char c : text)
      if (static_cast<unsigned char>(c) < vocab()) out.push_back(static_cast<unsigned char>(c));
    return;
  }
  const std::string ready = prepare(compose_ ? composed(text) : text, first);
  std::vector<std::string_view> words = {ready};
  for (const Split how : splits_) {
    std::vector<std::string_view> finer;
    for (const std::string_view word : words) {
      const auto parts = split(how, word);
      finer.insert(finer.end(), parts.begin(), parts.end());
    }
    words.swap(finer);
  }
  for (const std::string_view word : words)
    byte_level_ ? encode_word(bytes_to_letters(word), out) : encode_word(word, out);
}

void Tokenizer::emit(std::string_view symbol, std::vector<int32_t>& out) const {
  const auto it = ids_.find(std::string(symbol));
  if (it != ids_.end() && !special_[static_cast<size_t>(it->second)]) {
    out.push_back(it->second);
  } else if (!byte_tokens_.empty()) {
    for (const char c : symbol) out.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
  } else if (unknown_ >= 0 && !(fuse_unknown_ && !out.empty() && out.back() == unknown_)) {
    out.push_back(unknown_);
  }
}

const Tokenizer::Join* Tokenizer::join_of(std::string_view left, std::string_view right,
                                          std::string& key) const {
  key.assign(left);
  if (joins_by_parts_) key += kPartsBorder;
  key += right;
  const auto it = joins_.find(key);
  return it == joins_.end() ? nullptr : &it->second;
}

void Tokenizer::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  if (whole_words_)
    if (const auto it = ids_.find(std::string(word));
        it != ids_.end() && !special_[static_cast<size_t>(it->second)]) {
      out.push_back(it->second);
      return;
    }
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < word.size();) {
    const size_t size = std::max<size_t>(1, character_size(word.substr(at)));
    const auto i = static_cast<ptrdiff_t>(symbols.size());
    symbols.push_back({at, size, i - 1, i + 1});
    at += size;
  }
  if (symbols.empty()) return;
  symbols.back().right = -1;

  struct Candidate {
    double rank;
    ptrdiff_t left, right;
    size_t size;  // of the joined symbol: another size later means that a part is gone
    bool operator>(const Candidate& o) const {
      return rank != o.rank ? rank > o.rank : left > o.left;
    }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  std::string key;
  const auto at = [&](ptrdiff_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto consider = [&](ptrdiff_t left, ptrdiff_t right) {
    if (left < 0 || right < 0) return;
    const Symbol &a = at(left), &b = at(right);
    if (const Join* join = join_of(word.substr(a.at, a.size), word.substr(b.at, b.size), key))
      queue.push({join->rank, left, right, a.size + b.size});
  };
  for (size_t i = 1; i < symbols.size(); ++i)
    consider(static_cast<ptrdiff_t>(i) - 1, static_cast<ptrdiff_t>(i));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol &a = at(best.left), &b = at(best.right);
    if (a.size == 0 || b.size == 0 || a.right != best.right || a.size + b.size != best.size)
      continue;
    a.size += b.size;
    b.size = 0;
    a.right = b.right;
    if (a.right >= 0) at(a.right).left = best.left;
    consider(a.left, best.left);
    consider(best.left, a.right);
  }
  for (ptrdiff_t i = 0; i >= 0; i = at(i).right) emit(word.substr(at(i).at, at(i).size), out);
}

namespace {

Result<Tokenizer> read_tokenizer(const std::string& folder, uint32_t vocab) {
  const std::string json_path = folder + "/tokenizer.json",
                    model_path = folder + "/tokenizer.model";
  const auto json = read_json_file(json_path);
  if (!json && json.error().code != Code::kNotFound) return fail(json.error());
  const auto file = MappedFile::open(model_path);
  if (json) {
    auto t = Tokenizer::hugging_face(*json);
    if (t) return t;
    if (t.error().code != Code::kUnsupported || !file)
      return fail(t.error().code, "%s: %s", json_path.c_str(), t.error().what.c_str());
  }
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
    MC_TRY(const std::optional<bool> begins, begins_texts(*config));
    if (begins && !*begins) t.bos_ = -1;
    if (begins && *begins && t.bos_ < 0) t.bos_ = t.find(bos_text(*config)).value_or(-1);
  }
  if (t.vocab() > vocab)
    return fail(Code::kInvalid, "%s: the tokenizer has %u tokens, the model %u", folder.c_str(),
                t.vocab(), vocab);
  return t;
}

}  // namespace mc::model
