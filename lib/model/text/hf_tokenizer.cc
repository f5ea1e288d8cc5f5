// HF tokenizer.json: vocabulary, model and post-processor; its other parts have readers of their
// own. What is not supported is refused by name.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "model/text/tokenizer.h"
#include "model/tokens/decoder.h"
#include "model/tokens/steps.h"
#include "model/tokens/text.h"

namespace mc::model {
namespace {

constexpr uint64_t kTokensMax = 1u << 20;
constexpr size_t kWrittenBytesMax = 65536;    // of a piece as the file writes it
constexpr size_t kTextBytesMax = 256u << 20;  // of all pieces as texts have them
constexpr size_t kAroundMax = 1024;           // tokens that a template puts around each text
constexpr uint64_t kGapsMax = 4096;           // ids without a piece, beside three for each piece

Result<std::string> model_type(const Json& model) {
  const std::string type = text_of(model, "type");
  if (!type.empty()) return type;
  const Json* vocab = member(model, "vocab");  // files of early versions do not say it
  if (member(model, "merges") != nullptr) return "BPE";
  if (vocab != nullptr && vocab->is_array()) return "Unigram";
  if (member(model, "continuing_subword_prefix") != nullptr) return "WordPiece";
  return fail(Code::kInvalid, "the model has no 'type'");
}

// A score as the package reads it: digits as a whole number, divided by a power of ten. That may be
// one unit in the last place off, and decides between two cuts of equal scores.
double score_of(double score) {
  std::array<char, 64> text{};
  const auto end =
      std::to_chars(text.begin(), text.end(), std::abs(score), std::chars_format::scientific).ptr;
  uint64_t digits = 0;
  int exponent = 0;
  const char* c = text.begin();
  for (bool fraction = false; c != end && *c != 'e'; ++c) {
    if (*c == '.') {
      fraction = true;
      continue;
    }
    digits = digits * 10 + static_cast<uint64_t>(*c - '0');
    exponent -= fraction ? 1 : 0;
  }
  int written = 0;
  if (c != end) std::from_chars(c + (c[1] == '+' ? 2 : 1), end, written);
  exponent += written;
  if (exponent < -300 || exponent > 300) return score;
  const double power = std::pow(10.0, std::abs(exponent));
  const auto whole = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? whole / power : whole * power, score);
}

}  // namespace

// Ids of pieces as one space: checked, and with what is named twice named once.
class PieceIds {
 public:
  Result<> add(uint64_t id, const std::string& piece) {
    if (id >= kTokensMax)
      return fail(Code::kInvalid, "piece '%s' has the id %llu: want ids below %llu",
                  escape(piece).c_str(), static_cast<unsigned long long>(id),
                  static_cast<unsigned long long>(kTokensMax));
    if (piece.size() > kWrittenBytesMax)
      return fail(Code::kInvalid, "piece %llu has %zu bytes: want %zu at most",
                  static_cast<unsigned long long>(id), piece.size(), kWrittenBytesMax);
    if (id >= pieces_.size()) {
      pieces_.resize(static_cast<size_t>(id) + 1);
      there_.resize(pieces_.size());
    }
    const auto at = static_cast<size_t>(id);
    if (there_[at] && pieces_[at] != piece)
      return fail(Code::kInvalid, "two pieces have the ids %zu: '%s' and '%s'", at,
                  escape(pieces_[at]).c_str(), escape(piece).c_str());
    if (!there_[at]) ++count_;
    pieces_[at] = piece;
    there_[at] = true;
    return {};
  }
  Result<> check() const {
    if (count_ == 0) return fail(Code::kInvalid, "there are no pieces in 'vocab'");
    if (pieces_.size() > 4 * count_ + kGapsMax)
      return fail(Code::kInvalid, "the ids of %zu pieces go up to %zu", count_, pieces_.size() - 1);
    return {};
  }
  const std::vector<std::string>& pieces() const { return pieces_; }
  bool has(size_t id) const { return there_[id]; }

 private:
  std::vector<std::string> pieces_;
  std::vector<bool> there_;
  size_t count_ = 0;
};

class HfReader {
 public:
  Result<Tokenizer> read(const Json& file) {
    const Json* model = member(file, "model");
    if (model == nullptr || !model->is_object()) return fail(Code::kInvalid, "there is no 'model'");
    MC_TRY(type_, model_type(*model));
    t_.style_ = Tokenizer::Style::kHuggingFace;
    MC_TRY(t_.normalizer_, Normalizer::read(member(file, "normalizer")));
    MC_TRY(t_.pre_tokenizer_,
           PreTokenizer::read(member(file, "pre_tokenizer"), t_.normalizer_.growth()));
    MC_TRY(decoder_, Decoder::read(member(file, "decoder")));
    byte_fallback_ = flag_of(*model, "byte_fallback", false);
    MC_TRY_(vocabulary(*model, member(file, "added_tokens")));
    MC_TRY_(read_model(*model));
    MC_TRY_(post_process(member(file, "post_processor")));
    spaces(member(file, "normalizer"));
    return std::move(t_);
  }

 private:
  Result<> vocabulary(const Json& model, const Json* added) {
    const Json* vocab = member(model, "vocab");
    if (vocab == nullptr || vocab->is_object() == (type_ == "Unigram"))
      return fail(Code::kInvalid, "'vocab' of the model %s is not %s", type_.c_str(),
                  type_ == "Unigram" ? "a list of pieces and scores" : "an object of pieces");
    MC_TRY_(type_ == "Unigram" ? scored_ids(*vocab) : ids(*vocab));
    PieceTable known;
    for (size_t id = 0; id < ids_.pieces().size(); ++id)
      if (ids_.has(id)) known.add(ids_.pieces()[id], static_cast<int32_t>(id));
    for (size_t id = 0; id < ids_.pieces().size(); ++id) of_model_.push_back(ids_.has(id));
    std::vector<std::string> specials;
    if (added != nullptr && !added->is_array())
      return fail(Code::kInvalid, "'added_tokens' is not a list");
    if (added != nullptr)
      for (const Json& token : *added) {
        MC_TRY(const uint64_t id, get_uint(token, "id"));
        MC_TRY(const std::string content, get_string(token, "content"));
        if (known.find(content) < 0) MC_TRY_(ids_.add(id, content));
        if (flag_of(token, "special", false)) specials.push_back(content);
      }
    MC_TRY_(ids_.check());
    std::sort(specials.begin(), specials.end());
    for (size_t id = 0; id < ids_.pieces().size(); ++id) {
      const std::string& piece = ids_.pieces()[id];
      MC_TRY_(
          add(piece, !ids_.has(id) || std::binary_search(specials.begin(), specials.end(), piece)));
    }
    if (added != nullptr)
      for (const Json& token : *added) MC_TRY_(find_in_texts(token));
    return {};
  }

  Result<> ids(const Json& vocab) {
    for (const auto& [piece, id] : vocab.items()) {
      if (!id.is_number_unsigned())
        return fail(Code::kInvalid, "piece '%s' has no id", escape(piece).c_str());
      MC_TRY_(ids_.add(id.get<uint64_t>(), piece));
    }
    return {};
  }

  Result<> scored_ids(const Json& vocab) {
    for (size_t id = 0; id < vocab.size(); ++id) {
      const Json& one = vocab[id];
      if (!one.is_array() || one.size() != 2 || !one[0].is_string() || !one[1].is_number() ||
          !std::isfinite(one[1].get<double>()))
        return fail(Code::kInvalid, "piece %zu of 'vocab' is %s: want a text and a score", id,
                    escape(dump_json(one).substr(0, 100)).c_str());
      scores_.push_back(score_of(one[1].get<double>()));
      MC_TRY_(ids_.add(id, one[0].get<std::string>()));
    }
    return {};
  }

  Result<> add(const std::string& piece, bool special) {
    if (special) {
      t_.add_piece(piece, "", true);
      return {};
    }
    if (const auto byte = byte_of_piece(piece); byte_fallback_ && byte) {
      unknown_.bytes.resize(256, -1);
      unknown_.bytes[*byte] = static_cast<int32_t>(t_.vocab());
      // Text never spells it.
      t_.add_piece(piece, std::string(1, static_cast<char>(*byte)), true);
      return {};
    }
    std::string bytes = bytes_of(piece);
    MC_TRY_(count(bytes));
    t_.add_piece(piece, std::move(bytes), false);
    return {};
  }

  // Steps may make a piece much longer (growth.h).
  Result<> count(const std::string& text) {
    text_bytes_ += text.size();
    if (text_bytes_ <= kTextBytesMax) return {};
    return fail(Code::kInvalid, "its pieces stand for more than %zu bytes of text", kTextBytesMax);
  }

  std::string bytes_of(const std::string& piece) const {
    if (!decoder_.empty()) return decoder_.bytes(piece);
    if (t_.pre_tokenizer_.byte_level()) return letters_to_bytes(piece).value_or(piece);
    return marks_to_spaces(piece);
  }

  Result<> find_in_texts(const Json& token) {
    MarkedTokens::Mark mark;
    mark.text = text_of(token, "content");
    mark.token = t_.ids_.find(mark.text);
    mark.takes_left = flag_of(token, "lstrip", false);
    mark.takes_right = flag_of(token, "rstrip", false);
    mark.single_word = flag_of(token, "single_word", false);
    mark.special = flag_of(token, "special", false);
    if (mark.token < 0) return {};  // an empty text
    if (!flag_of(token, "normalized", !mark.special)) {
      t_.marks_.add(std::move(mark));
      return {};
    }
    mark.text = t_.normalizer_.apply(mark.text);
    MC_TRY_(count(mark.text));
    if (!mark.special) {
      std::string& bytes = t_.bytes_[static_cast<size_t>(mark.token)];
      bytes = bytes_of(mark.text);
      MC_TRY_(count(bytes));
    }
    t_.normalized_marks_.add(std::move(mark));
    return {};
  }

  // The model's vocabulary as texts meet it: no special tokens, and bytes for letters of bytes.
  PieceTable table() const {
    PieceTable table;
    for (size_t id = 0; id < of_model_.size(); ++id) {
      if (t_.special_[id] || !of_model_[id]) continue;
      const std::string& piece = t_.pieces_[id];
      if (!t_.pre_tokenizer_.byte_level())
        table.add(piece, static_cast<int32_t>(id));
      else if (const auto bytes = letters_to_bytes(piece))
        table.add(*bytes, static_cast<int32_t>(id));
    }
    return table;
  }

  Result<> read_model(const Json& model) {
    const std::string unknown = text_of(model, "unk_token");
    if (!unknown.empty()) unknown_.token = t_.ids_.find(unknown);
    if (type_ == "BPE") return bpe(model);
    if (type_ == "Unigram") return unigram(model);
    if (type_ == "WordPiece") {
      const Json* prefix = member(model, "continuing_subword_prefix");
      if (unknown.empty()) unknown_.token = t_.ids_.find("[UNK]");
      MC_TRY(const uint64_t most, get_uint_or(model, "max_input_chars_per_word", 100));
      t_.model_ = make_word_piece(
          table(), prefix == nullptr ? "##" : text_of(model, "continuing_subword_prefix"),
          static_cast<size_t>(std::min<uint64_t>(most, UINT32_MAX)), unknown_.token);
      return {};
    }
    if (type_ == "WordLevel") {
      t_.model_ = make_word_level(table(), unknown_.token);
      return {};
    }
    return fail(Code::kUnsupported,
                "a model of type '%s': want BPE, Unigram, WordPiece or WordLevel",
                escape(type_).c_str());
  }

  Result<> unigram(const Json& model) {
    MC_TRY(const uint64_t unknown, get_uint_or(model, "unk_id", UINT64_MAX));
    if (unknown != UINT64_MAX && unknown >= scores_.size())
      return fail(Code::kInvalid, "'unk_id' is %llu: want less than the %zu pieces",
                  static_cast<unsigned long long>(unknown), scores_.size());
    unknown_.token = unknown == UINT64_MAX ? -1 : static_cast<int32_t>(unknown);
    unknown_.fuse = true;
    std::vector<std::pair<std::string, int32_t>> pieces;
    for (size_t id = 0; id < scores_.size(); ++id)
      if (!t_.special_[id] && !t_.pieces_[id].empty() && static_cast<uint64_t>(id) != unknown)
        pieces.emplace_back(t_.pieces_[id], static_cast<int32_t>(id));
    t_.model_ = make_unigram(pieces, std::move(scores_), std::move(unknown_));
    return {};
  }

  Result<> bpe(const Json& model) {
    MC_TRY(const double dropout, get_number_or(model, "dropout", 0));
    if (dropout != 0) return fail(Code::kUnsupported, "the model BPE has a dropout: want none");
    BpeOptions options;
    unknown_.fuse = flag_of(model, "fuse_unk", false);
    options.unknown = std::move(unknown_);
    options.raw_bytes = t_.pre_tokenizer_.byte_level();
    options.whole_words = flag_of(model, "ignore_merges", false);
    options.prefix = text_of(model, "continuing_subword_prefix");
    options.suffix = text_of(model, "end_of_word_suffix");
    if (options.raw_bytes && !(options.prefix + options.suffix).empty())
      return fail(Code::kUnsupported,
                  "the model BPE has affixes of words ('%s', '%s') and letters for bytes",
                  escape(options.prefix).c_str(), escape(options.suffix).c_str());
    const Json* list = member(model, "merges");
    if (list == nullptr || !list->is_array())
      return fail(Code::kInvalid, "the model BPE has no list of 'merges'");
    std::vector<Merge> merges;
    for (const Json& merge : *list) {
      MC_TRY(const Merge one, merge_of(merge, options.prefix));
      // Text never becomes a special token.
      if (!t_.special(one.made)) merges.push_back(one);
    }
    t_.model_ = make_bpe(table(), t_.pieces_.size(), std::move(merges), std::move(options));
    return {};
  }

  Result<Merge> merge_of(const Json& merge, const std::string& prefix) const {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      left = text.substr(0, space);
      right = space == std::string::npos ? "" : text.substr(space + 1);
    }
    const bool within = !prefix.empty() && right.starts_with(prefix);
    const std::string made = left + (within ? right.substr(prefix.size()) : right);
    const Merge one{t_.ids_.find(left), t_.ids_.find(right), t_.ids_.find(made)};
    if (one.left < 0 || one.right < 0 || one.made < 0)
      return fail(Code::kInvalid, "merge %s is not of two pieces whose union is one: '%s' is none",
                  escape(dump_json(merge).substr(0, 200)).c_str(),
                  escape(one.left < 0    ? left
                         : one.right < 0 ? right
                                         : made)
                      .c_str());
    return one;
  }

  Result<> post_process(const Json* post) {
    constexpr const char* kPart = "post_processor";
    MC_TRY(const auto steps, steps_of(post, kPart, "processors"));
    for (const Json* step : steps)
      if (const auto done = post_step(*step); !done)
        return fail(about_step(kPart, *step, done.error()));
    if (!t_.before_.empty()) t_.bos_ = t_.before_.front();
    return {};
  }

  Result<> post_step(const Json& step) {
    const std::string type = text_of(step, "type");
    if (type == "ByteLevel") return {};  // it moves offsets only
    if (type == "TemplateProcessing") return template_step(step);
    if (type != "BertProcessing" && type != "RobertaProcessing")
      return fail(Code::kUnsupported, "this type is not supported");
    MC_TRY(const int32_t cls, pair_of(step, "cls"));
    MC_TRY(const int32_t sep, pair_of(step, "sep"));
    MC_TRY_(check_around(2));
    t_.before_.insert(t_.before_.begin(), cls);
    t_.after_.push_back(sep);
    return {};
  }

  Result<> check_around(size_t more) const {
    if (t_.before_.size() + t_.after_.size() + more <= kAroundMax) return {};
    return fail(Code::kInvalid, "over %zu tokens around each text", kAroundMax);
  }

  Result<int32_t> token_of(const Json& id) const {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= t_.vocab())
      return fail(Code::kInvalid, "%s is no token of the vocabulary",
                  escape(dump_json(id).substr(0, 100)).c_str());
    return id.get<int32_t>();
  }

  Result<int32_t> pair_of(const Json& step, const char* key) const {  // ["[CLS]", 101]
    const Json* pair = member(step, key);
    if (pair == nullptr || !pair->is_array() || pair->size() != 2)
      return fail(Code::kInvalid, "want '%s' as a text and an id", key);
    return token_of((*pair)[1]);
  }

  Result<std::vector<int32_t>> special_of(const Json& step, const std::string& name) const {
    const Json* all = member(step, "special_tokens");
    const Json* one = all == nullptr ? nullptr : member(*all, name.c_str());
    const Json* ids = one == nullptr ? nullptr : member(*one, "ids");
    std::vector<int32_t> tokens;
    if (ids != nullptr && ids->is_array()) {
      for (const Json& id : *ids) {
        MC_TRY(const int32_t token, token_of(id));
        tokens.push_back(token);
      }
      return tokens;
    }
    const auto found = t_.find(name);
    if (!found)
      return fail(Code::kInvalid, "'%s' is no token of the vocabulary", escape(name).c_str());
    tokens.push_back(*found);
    return tokens;
  }

  Result<> template_step(const Json& step) {
    const Json* single = member(step, "single");
    if (single == nullptr || !single->is_array()) return fail(Code::kInvalid, "no list 'single'");
    std::vector<int32_t> before, after;
    bool text = false;
    for (const Json& part : *single) {
      const Json* special = member(part, "SpecialToken");
      if (special != nullptr) {
        MC_TRY(const auto tokens, special_of(step, text_of(*special, "id")));
        std::vector<int32_t>& to = text ? after : before;
        MC_TRY_(check_around(before.size() + after.size() + tokens.size()));
        to.insert(to.end(), tokens.begin(), tokens.end());
      } else if (text) {
        return fail(Code::kUnsupported, "the text is in 'single' more than once");
      } else {
        text = true;
      }
    }
    t_.before_.insert(t_.before_.begin(), before.begin(), before.end());
    t_.after_.insert(t_.after_.end(), after.begin(), after.end());
    return {};
  }

  // A file without a decoder: as decoders of its kind do.
  void spaces(const Json* normalizer) {
    t_.drops_space_ = decoder_.drops_space();
    t_.drops_last_space_ = decoder_.drops_last_space();
    if (!decoder_.empty() || t_.pre_tokenizer_.byte_level()) return;
    t_.drops_space_ = t_.pre_tokenizer_.marks_spaces() && t_.pre_tokenizer_.adds_space();
    const auto steps = steps_of(normalizer, "normalizer", "normalizers");
    for (const Json* step : *steps)
      if (text_of(*step, "type") == "Prepend" && text_of(*step, "prepend") == kSpaceMark)
        t_.drops_space_ = true;
  }

  Tokenizer t_;
  std::string type_;
  PieceIds ids_;
  std::vector<bool> of_model_;  // by id; added tokens are not
  std::vector<double> scores_;
  Decoder decoder_;
  Unknown unknown_;
  size_t text_bytes_ = 0;
  bool byte_fallback_ = false;
};

Result<Tokenizer> Tokenizer::hugging_face(const Json& tokenizer) {
  return HfReader().read(tokenizer);
}

}  // namespace mc::model
