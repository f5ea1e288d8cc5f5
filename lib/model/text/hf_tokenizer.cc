// HF tokenizer.json: byte-pair encoding with its normalizers and pre-tokenizers, as far as LLaMA's
// family uses them. What it does not support is refused by name.
#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "model/text/text.h"
#include "model/text/tokenizer.h"

namespace mc::model {
namespace {

constexpr size_t kTokensMax = 1u << 20;

std::string text_of(const Json& object, const char* key) {
  const Json* j = member(object, key);
  return j != nullptr && j->is_string() ? j->get<std::string>() : "";
}
bool flag(const Json& object, const char* key, bool fallback) {
  const Json* j = member(object, key);
  return j != nullptr && j->is_boolean() ? j->get<bool>() : fallback;
}
// A step, or the steps of a Sequence.
std::vector<const Json*> steps(const Json* step, const char* list) {
  if (step == nullptr) return {};
  const Json* inner = text_of(*step, "type") == "Sequence" ? member(*step, list) : nullptr;
  if (inner == nullptr || !inner->is_array()) return {step};
  std::vector<const Json*> out;
  for (const Json& s : *inner) out.push_back(&s);
  return out;
}

}  // namespace

class HfReader {
 public:
  Result<Tokenizer> read(const Json& file) {
    const Json* model = member(file, "model");
    if (model == nullptr) return fail(Code::kInvalid, "there is no 'model'");
    const std::string type = text_of(*model, "type");
    if (type != "BPE" && !(type.empty() && member(*model, "merges") != nullptr))
      return fail(Code::kUnsupported, "a tokenizer of type '%s': want BPE", escape(type).c_str());
    t_.style_ = Tokenizer::Style::kHuggingFace;
    t_.joins_by_parts_ = true;
    t_.fuse_unknown_ = flag(*model, "fuse_unk", false);
    t_.whole_words_ = flag(*model, "ignore_merges", false);
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(*model, affix).empty())
        return fail(Code::kUnsupported, "'%s' is '%s': want none", affix,
                    escape(text_of(*model, affix)).c_str());
    MC_TRY_(normalize(member(file, "normalizer")));
    MC_TRY_(pre_tokenize(member(file, "pre_tokenizer")));
    MC_TRY_(vocabulary(*model, member(file, "added_tokens")));
    MC_TRY_(merges(*model));
    finish(*model, member(file, "post_processor"));
    return std::move(t_);
  }

 private:
  Result<> normalize(const Json* normalizer) {
    for (const Json* step : steps(normalizer, "normalizers")) {
      const std::string type = text_of(*step, "type");
      const Json* pattern = member(*step, "pattern");
      if (type == "Prepend" && text_of(*step, "prepend") == kSpaceMark)
        t_.prefix_space_ = true;
      else if (type == "Replace" && pattern != nullptr && text_of(*pattern, "String") == " " &&
               text_of(*step, "content") == kSpaceMark)
        t_.mark_spaces_ = true;
      else if (type == "NFC")
        t_.compose_ = true;
      else
        return fail(Code::kUnsupported, "normalizer %s is not supported",
                    escape(dump_json(*step)).c_str());
    }
    return {};
  }

  Result<> pre_tokenize(const Json* pre) {
    for (const Json* step : steps(pre, "pretokenizers"))
      if (!pre_step(*step))
        return fail(Code::kUnsupported, "pre-tokenizer %s is not supported",
                    escape(dump_json(*step)).c_str());
    return {};
  }

  bool pre_step(const Json& step) {  // false: not done here
    const std::string type = text_of(step, "type");
    if (t_.byte_level_) return false;  // what follows would see letters for bytes
    if (type == "ByteLevel") {
      t_.byte_level_ = true;
      t_.prefix_space_ = t_.prefix_bare_ = flag(step, "add_prefix_space", true);
      if (t_.prefix_space_ && !t_.splits_.empty()) return false;  // a space before each piece
      if (flag(step, "use_regex", true)) t_.splits_.push_back(Split::kGpt2);
      return true;
    }
    if (type == "Digits") {
      t_.splits_.push_back(flag(step, "individual_digits", false) ? Split::kDigits
                                                                  : Split::kDigitRuns);
      return true;
    }
    if (type == "Metaspace") return metaspace(step);
    if (type != "Split") return false;
    const Json* pattern = member(step, "pattern");
    const auto known = split_of_pattern(pattern == nullptr ? "" : text_of(*pattern, "Regex"));
    // The pieces are all of the text: what is kept of it is the same either way.
    const bool inverted = flag(step, "invert", false);
    if (!known || text_of(step, "behavior") != (inverted ? "Removed" : "Isolated")) return false;
    t_.splits_.push_back(*known);
    return true;
  }

  bool metaspace(const Json& step) {
    const std::string scheme =
        flag(step, "add_prefix_space", true) ? text_of(step, "prepend_scheme") : "never";
    if (text_of(step, "replacement") != kSpaceMark || t_.prefix_space_ || t_.mark_spaces_)
      return false;
    t_.mark_spaces_ = true;
    t_.prefix_space_ = t_.prefix_bare_ = scheme != "never";
    t_.prefix_first_ = scheme == "first";
    if (flag(step, "split", true)) t_.splits_.push_back(Split::kMarkedWords);
    return true;
  }

  Result<> vocabulary(const Json& model, const Json* added) {
    std::vector<std::pair<uint64_t, std::string>> ids;
    std::vector<std::string> specials;
    const Json* vocab = member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object())
      return fail(Code::kInvalid, "'vocab' is not an object of pieces");
    for (const auto& [piece, id] : vocab->items()) {
      if (!id.is_number_unsigned())
        return fail(Code::kInvalid, "piece '%s' has no id", escape(piece).c_str());
      ids.emplace_back(id.get<uint64_t>(), piece);
    }
    if (added != nullptr && added->is_array()) {
      for (const Json& token : *added) {
        MC_TRY(const uint64_t id, get_uint(token, "id"));
        MC_TRY(const std::string content, get_string(token, "content"));
        ids.emplace_back(id, content);
        if (flag(token, "special", false)) specials.push_back(content);
      }
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    std::sort(specials.begin(), specials.end());
    if (ids.empty() || ids.size() > kTokensMax)
      return fail(Code::kInvalid, "%zu pieces in 'vocab': want 1 to %zu", ids.size(), kTokensMax);
    const bool bytes = flag(model, "byte_fallback", false);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto& [id, piece] = ids[i];
      if (id != i)
        return fail(Code::kInvalid, "the ids of %zu pieces are not 0 to %zu: %llu is '%s'",
                    ids.size(), ids.size() - 1, static_cast<unsigned long long>(id),
                    escape(piece).c_str());
      add(piece, std::binary_search(specials.begin(), specials.end(), piece), bytes);
    }
    if (added != nullptr && added->is_array())
      for (const Json& token : *added) find_in_texts(token);
    t_.added_.sort();
    t_.marks_.sort();
    return {};
  }

  void find_in_texts(const Json& token) {
    const std::string text = text_of(token, "content");
    const int32_t id = t_.ids_.at(text);
    t_.marks_.add({text, id, flag(token, "lstrip", false), flag(token, "rstrip", false)});
    if (!t_.special(id)) t_.added_.add({text, id});
  }

  void add(const std::string& piece, bool special, bool byte_fallback) {
    std::string bytes;
    if (special) return t_.add_piece(piece, "", true);
    if (t_.byte_level_)
      bytes = letters_to_bytes(piece).value_or(piece);
    else
      bytes = marks_to_spaces(piece);
    if (const auto byte = byte_of_piece(piece); byte_fallback && byte) {
      bytes = static_cast<char>(*byte);
      t_.byte_tokens_.resize(256, -1);
      t_.byte_tokens_[*byte] = static_cast<int32_t>(t_.pieces_.size());
      special = true;  // never what text spells
    }
    t_.add_piece(piece, std::move(bytes), special);
  }

  Result<> merges(const Json& model) {
    const Json* list = member(model, "merges");
    if (list == nullptr || !list->is_array()) return fail(Code::kInvalid, "no list of 'merges'");
    double rank = 0;
    for (const Json& merge : *list) {
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const std::string text = merge.get<std::string>();
        const size_t space = text.find(' ');
        left = text.substr(0, space);
        right = space == std::string::npos ? "" : text.substr(space + 1);
      }
      const auto joined = t_.find(left + right);
      if (left.empty() || right.empty() || !joined)
        return fail(Code::kInvalid, "merge %s is not of two pieces whose union is one",
                    escape(dump_json(merge)).c_str());
      t_.joins_.emplace(left + '\xFF' + right, Tokenizer::Join{rank++, *joined});
    }
    return {};
  }

  void finish(const Json& model, const Json* post) {
    if (std::find(t_.byte_tokens_.begin(), t_.byte_tokens_.end(), -1) != t_.byte_tokens_.end())
      t_.byte_tokens_.clear();
    t_.unknown_ = t_.find(text_of(model, "unk_token")).value_or(-1);
    for (const Json* step : steps(post, "processors")) {  // what comes before a text
      const Json* single = member(*step, "single");
      if (single == nullptr || !single->is_array() || single->empty()) continue;
      if (const Json* first = member((*single)[0], "SpecialToken"))
        t_.bos_ = t_.find(text_of(*first, "id")).value_or(-1);
    }
  }

  Tokenizer t_;
};

Result<Tokenizer> Tokenizer::hugging_face(const Json& tokenizer) {
  return HfReader().read(tokenizer);
}

}  // namespace mc::model
