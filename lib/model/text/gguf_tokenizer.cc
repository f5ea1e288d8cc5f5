// The tokenizer of a GGUF file: scored pieces ("llama"), or byte-level pairs ("gpt2"), which are
// converted to the form of tokenizer.json.
#include <array>

#include "base/json.h"
#include "base/units.h"
#include "model/text/gguf_tokenizer.h"

namespace mc::model {
namespace {

enum TokenKind : int64_t { kControlToken = 3, kUserToken = 4 };

std::string key_of(const char* name) { return std::string("tokenizer.ggml.") + name; }
bool flag(const Gguf& g, const char* name, bool fallback) {
  const bool* found = gguf_value<bool>(g, key_of(name));
  return found == nullptr ? fallback : *found;
}

Result<Tokenizer> scored(const Gguf& g, const std::vector<std::string>& texts,
                         const std::vector<int64_t>& kinds) {
  const auto* scores = gguf_value<std::vector<double>>(g, key_of("scores"));
  if (scores == nullptr || texts.size() != scores->size())
    return fail(Code::kInvalid, "tokens and scores of the tokenizer are not of one length");
  std::vector<Tokenizer::Piece> pieces;
  for (size_t i = 0; i < texts.size(); ++i)
    pieces.push_back({texts[i], static_cast<float>((*scores)[i]), static_cast<uint64_t>(kinds[i])});
  const int64_t* bos = gguf_value<int64_t>(g, key_of("bos_token_id"));
  const bool with_bos = bos != nullptr && flag(g, "add_bos_token", true);
  return Tokenizer::scored_pieces(std::move(pieces), with_bos ? *bos : -1,
                                  flag(g, "add_space_prefix", true));
}

// What comes before pairs are joined, by the name files give it.
Result<Json> pre_tokenizer(const std::string& pre) {
  struct Known {
    const char* name;
    Split split;
    bool digits;
  };
  constexpr std::array<Known, 6> kKnown = {{{"gpt-2", Split::kGpt2, false},
                                            {"llama-bpe", Split::kLlama3, false},
                                            {"llama-v3", Split::kLlama3, false},
                                            {"llama3", Split::kLlama3, false},
                                            {"qwen2", Split::kQwen2, false},
                                            {"smollm", Split::kGpt2, true}}};
  for (const Known& k : kKnown) {
    if (pre != k.name) continue;
    Json steps = Json::array();
    if (k.digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::string(pattern_of(k.split))}}},
                     {"behavior", "Isolated"}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    return Json{{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  }
  return fail(Code::kUnsupported,
              "'tokenizer.ggml.pre' is '%s': want gpt-2, llama-bpe, qwen2 or smollm",
              escape(pre).c_str());
}

Result<Tokenizer> byte_pairs(const Gguf& g, const std::vector<std::string>& texts,
                             const std::vector<int64_t>& kinds) {
  const auto* merges = gguf_value<std::vector<std::string>>(g, key_of("merges"));
  const auto* pre = gguf_value<std::string>(g, key_of("pre"));
  if (merges == nullptr) return fail(Code::kInvalid, "no 'tokenizer.ggml.merges'");
  Json file = Json::object(), vocab = Json::object(), added = Json::array();
  MC_TRY(file["pre_tokenizer"], pre_tokenizer(pre == nullptr ? "" : *pre));
  for (size_t i = 0; i < texts.size(); ++i) {
    append_member(vocab, texts[i], i);
    if (kinds[i] == kControlToken || kinds[i] == kUserToken)
      added.push_back({{"id", i}, {"content", texts[i]}, {"special", kinds[i] == kControlToken}});
  }
  const bool llama3 = pre != nullptr && pre->starts_with("llama");
  file["model"] = {
      {"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", *merges}, {"ignore_merges", llama3}};
  file["added_tokens"] = std::move(added);
  const int64_t* bos = gguf_value<int64_t>(g, key_of("bos_token_id"));
  if (bos != nullptr && *bos >= 0 && static_cast<uint64_t>(*bos) < texts.size() &&
      flag(g, "add_bos_token", llama3)) {
    const Json first = {{"SpecialToken", {{"id", texts[static_cast<size_t>(*bos)]}}}};
    file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array({first})}};
  }
  return Tokenizer::hugging_face(file);
}

}  // namespace

Result<Tokenizer> gguf_tokenizer(const Gguf& g) {
  const std::string* kind = gguf_value<std::string>(g, key_of("model"));
  const auto* texts = gguf_value<std::vector<std::string>>(g, key_of("tokens"));
  const auto* kinds = gguf_value<std::vector<int64_t>>(g, key_of("token_type"));
  if (kind == nullptr || (*kind != "llama" && *kind != "gpt2"))
    return fail(Code::kUnsupported, "a tokenizer of kind '%s': want llama or gpt2",
                kind == nullptr ? "" : escape(*kind).c_str());
  if (texts == nullptr || kinds == nullptr || texts->size() != kinds->size())
    return fail(Code::kInvalid, "tokens and types of the tokenizer are not of one length");
  return *kind == "llama" ? scored(g, *texts, *kinds) : byte_pairs(g, *texts, *kinds);
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
