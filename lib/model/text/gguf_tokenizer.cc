// The tokenizer of a GGUF file: scored pieces ("llama", "t5"), byte-level pairs ("gpt2") or
// WordPiece
// ("bert"); the last two are converted to the form of tokenizer.json.
#include "model/text/gguf_tokenizer.h"
#include "base/json.h"
#include "base/units.h"
#include "model/text/gguf_patterns.h"
#include "model/tokens/text.h"

namespace mc::model {
namespace {

constexpr int64_t kUnknownToken = 2, kControlToken = 3, kUserToken = 4;

std::string key_of(const char* name) { return std::string("tokenizer.ggml.") + name; }
bool flag(const Gguf& g, const char* name, bool fallback) {
  const bool* found = gguf_value<bool>(g, key_of(name));
  return found == nullptr ? fallback : *found;
}
// The id of a special token, where a text has it; -1: it has none.
int64_t id_of(const Gguf& g, const char* name, const char* wanted, bool by_default) {
  const int64_t* id = gguf_value<int64_t>(g, key_of(name));
  return id != nullptr && flag(g, wanted, by_default) ? *id : -1;
}

struct Vocabulary {
  const std::vector<std::string>& texts;
  const std::vector<int64_t>& kinds;
};

Result<std::vector<Tokenizer::Piece>> scored(const Gguf& g, const Vocabulary& v) {
  const auto* scores = gguf_value<std::vector<double>>(g, key_of("scores"));
  if (scores == nullptr || v.texts.size() != scores->size())
    return fail(Code::kInvalid, "tokens and scores of the tokenizer are not of one length");
  std::vector<Tokenizer::Piece> pieces;
  for (size_t i = 0; i < v.texts.size(); ++i)
    pieces.push_back(
        {v.texts[i], static_cast<float>((*scores)[i]), static_cast<uint64_t>(v.kinds[i])});
  return pieces;
}

Result<Tokenizer> scored_pairs(const Gguf& g, const Vocabulary& v) {
  MC_TRY(auto pieces, scored(g, v));
  return Tokenizer::scored_pieces(std::move(pieces),
                                  id_of(g, "bos_token_id", "add_bos_token", true),
                                  flag(g, "add_space_prefix", true));
}

Result<Tokenizer> unigram(const Gguf& g, const Vocabulary& v) {
  Tokenizer::UnigramParts parts;
  MC_TRY(parts.pieces, scored(g, v));
  parts.bos = id_of(g, "bos_token_id", "add_bos_token", false);
  parts.eos = id_of(g, "eos_token_id", "add_eos_token", true);
  parts.prefix_space = flag(g, "add_space_prefix", true);
  parts.collapse_spaces = flag(g, "remove_extra_whitespaces", true);
  if (const auto* map = gguf_value<std::vector<int64_t>>(g, key_of("precompiled_charsmap")))
    for (const int64_t byte : *map) parts.charsmap += static_cast<char>(byte);
  return Tokenizer::unigram(std::move(parts));
}

Json added_tokens(const Vocabulary& v) {
  Json added = Json::array();
  for (size_t i = 0; i < v.texts.size(); ++i)
    if (v.kinds[i] == kControlToken || v.kinds[i] == kUserToken)
      added.push_back({{"id", i},
                       {"content", v.texts[i]},
                       {"special", v.kinds[i] == kControlToken},
                       {"normalized", false}});
  return added;
}

// A post-processor that puts these ids around a text, where they are tokens.
Json around(const Vocabulary& v, int64_t before, int64_t after) {
  Json single = Json::array(), specials = Json::object();
  const auto add = [&](int64_t id) {
    if (id < 0 || static_cast<uint64_t>(id) >= v.texts.size()) return;
    const std::string& text = v.texts[static_cast<size_t>(id)];
    single.push_back({{"SpecialToken", {{"id", text}}}});
    specials[text] = {{"id", text}, {"ids", Json::array({static_cast<uint64_t>(id)})}};
  };
  add(before);
  single.push_back({{"Sequence", {{"id", "A"}}}});
  add(after);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}};
}

Result<Tokenizer> byte_pairs(const Gguf& g, const Vocabulary& v) {
  const auto* merges = gguf_value<std::vector<std::string>>(g, key_of("merges"));
  const auto* pre = gguf_value<std::string>(g, key_of("pre"));
  if (merges == nullptr) return fail(Code::kInvalid, "no 'tokenizer.ggml.merges'");
  MC_TRY(const GgufPatterns how, gguf_patterns(pre == nullptr ? "" : *pre));
  Json file = Json::object(), vocab = Json::object(), steps = Json::array();
  for (const std::string_view pattern : how.patterns)
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(pattern)}}},
                     {"behavior", "Isolated"}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  for (size_t i = 0; i < v.texts.size(); ++i) append_member(vocab, v.texts[i], i);
  file["model"] = {{"type", "BPE"},
                   {"vocab", std::move(vocab)},
                   {"merges", *merges},
                   {"ignore_merges", how.whole_words}};
  file["added_tokens"] = added_tokens(v);
  file["post_processor"] = around(v, id_of(g, "bos_token_id", "add_bos_token", how.begins),
                                  id_of(g, "eos_token_id", "add_eos_token", false));
  return Tokenizer::hugging_face(file);
}

// Its pieces begin with U+2581 where BERT's begin a word, and are bare where BERT writes "##".
Result<Tokenizer> word_pieces(const Gguf& g, const Vocabulary& v) {
  Json file = Json::object(), vocab = Json::object();
  for (size_t i = 0; i < v.texts.size(); ++i) {
    const std::string& text = v.texts[i];
    const bool special = v.kinds[i] == kControlToken || v.kinds[i] == kUnknownToken;
    const bool begins = text.starts_with(kSpaceMark) && text != kSpaceMark;
    append_member(vocab, special ? text : begins ? text.substr(kSpaceMark.size()) : "##" + text, i);
  }
  const int64_t* unknown = gguf_value<int64_t>(g, key_of("unknown_token_id"));
  const bool has =
      unknown != nullptr && *unknown >= 0 && static_cast<uint64_t>(*unknown) < v.texts.size();
  file["model"] = {
      {"type", "WordPiece"},
      {"vocab", std::move(vocab)},
      {"unk_token", has ? v.texts[static_cast<size_t>(*unknown)] : std::string("[UNK]")},
      {"continuing_subword_prefix", "##"},
      {"max_input_chars_per_word", UINT32_MAX}};
  file["normalizer"] = {{"type", "BertNormalizer"}, {"lowercase", true}};
  file["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  file["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  file["added_tokens"] = added_tokens(v);
  const char* begin =
      gguf_value<int64_t>(g, key_of("cls_token_id")) != nullptr ? "cls_token_id" : "bos_token_id";
  file["post_processor"] = around(v, id_of(g, begin, "add_bos_token", true),
                                  id_of(g, "seperator_token_id", "add_sep_token", true));
  return Tokenizer::hugging_face(file);
}

}  // namespace

Result<Tokenizer> gguf_tokenizer(const Gguf& g) {
  struct Known {
    const char* kind;
    Result<Tokenizer> (*read)(const Gguf&, const Vocabulary&);
  };
  constexpr Known kKnown[] = {
      {"llama", scored_pairs}, {"gpt2", byte_pairs}, {"bert", word_pieces}, {"t5", unigram}};
  const std::string* kind = gguf_value<std::string>(g, key_of("model"));
  const auto* texts = gguf_value<std::vector<std::string>>(g, key_of("tokens"));
  const auto* kinds = gguf_value<std::vector<int64_t>>(g, key_of("token_type"));
  for (const Known& known : kKnown) {
    if (kind == nullptr || *kind != known.kind) continue;
    if (texts == nullptr || kinds == nullptr || texts->size() != kinds->size())
      return fail(Code::kInvalid, "tokens and types of the tokenizer are not of one length");
    return known.read(g, {*texts, *kinds});
  }
  return fail(Code::kUnsupported, "'tokenizer.ggml.model' is '%s': want llama, gpt2, bert or t5",
              kind == nullptr ? "" : escape(*kind).c_str());
}

ChatFormat gguf_chat(const Gguf& g) {
  const auto text = [&](const char* key) {
    const std::string* found = gguf_value<std::string>(g, key);
    return found == nullptr ? std::string() : *found;
  };
  const auto* pieces = gguf_value<std::vector<std::string>>(g, key_of("tokens"));
  const auto token = [&](const char* name) {
    const int64_t* id = gguf_value<int64_t>(g, key_of(name));
    if (id == nullptr || pieces == nullptr || *id < 0) return std::string();
    const auto i = static_cast<size_t>(*id);
    return i < pieces->size() ? (*pieces)[i] : std::string();
  };
  return chat_format(text("tokenizer.chat_template"), text("tokenizer.chat_template.tool_use"),
                     token("bos_token_id"), token("eos_token_id"));
}

}  // namespace mc::model
