// SentencePiece .model files: a protobuf of pieces; few of its fields matter.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/units.h"
#include "model/text/tokenizer.h"
#include "model/tokens/charsmap.h"
#include "model/tokens/text.h"

namespace mc::model {
namespace {

constexpr size_t kPiecesMax = 1u << 20, kPieceBytesMax = 65536;

// One field of a protobuf message: a number, or bytes.
struct Field {
  uint32_t id = 0;
  uint64_t number = 0;  // varint, or the bits of a fixed one
  std::string_view bytes;
};

Result<uint64_t> read_varint(std::string_view& in) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (in.empty()) break;
    const auto byte = static_cast<unsigned char>(in[0]);
    in.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return fail(Code::kCorrupt, "not a SentencePiece model: a number that does not end");
}

Result<Field> read_field(std::string_view& in) {
  MC_TRY(const uint64_t tag, read_varint(in));
  Field f;
  f.id = static_cast<uint32_t>(tag >> 3);
  uint64_t size = 0;
  switch (tag & 7) {
    case 0: {
      MC_TRY(f.number, read_varint(in));
      return f;
    }
    case 1: size = 8; break;
    case 5: size = 4; break;
    case 2: {
      MC_TRY(size, read_varint(in));
      break;
    }
    default: return fail(Code::kCorrupt, "not a SentencePiece model: an unknown kind of field");
  }
  if (size > in.size())
    return fail(Code::kCorrupt,
                "not a SentencePiece model, or cut off: a field of %llu bytes, %zu "
                "are left",
                static_cast<unsigned long long>(size), in.size());
  f.bytes = in.substr(0, size);
  in.remove_prefix(size);
  if ((tag & 7) != 2) std::memcpy(&f.number, f.bytes.data(), size);
  return f;
}

}  // namespace

class SpmReader {
 public:
  SpmReader() { t_.style_ = Tokenizer::Style::kSentencePiece; }

  Result<Tokenizer> read(std::string_view model) {
    while (!model.empty()) {
      MC_TRY(const Field f, read_field(model));
      if (f.id == 1) MC_TRY_(piece(f.bytes));
      if (f.id == 2) MC_TRY_(trainer(f.bytes));
      if (f.id == 3) MC_TRY_(normalizer(f.bytes));
    }
    return finish();
  }

  Result<Tokenizer> scored(std::vector<Tokenizer::Piece> pieces, int64_t bos, bool prefix_space) {
    for (Tokenizer::Piece& p : pieces) MC_TRY_(add(std::move(p)));
    model_type_ = kBpe;
    bos_ = bos;
    prefix_space_ = prefix_space;
    collapse_spaces_ = false;
    return finish();
  }

  Result<Tokenizer> unigram(Tokenizer::UnigramParts parts) {
    for (Tokenizer::Piece& p : parts.pieces) MC_TRY_(add(std::move(p)));
    bos_ = parts.bos;
    eos_ = parts.eos;
    prefix_space_ = parts.prefix_space;
    collapse_spaces_ = parts.collapse_spaces;
    charsmap_ = std::move(parts.charsmap);
    return finish();
  }

 private:
  static constexpr uint64_t kUnigram = 1, kBpe = 2;
  enum Kind : uint64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

  Result<> piece(std::string_view in) {
    Tokenizer::Piece p;
    while (!in.empty()) {
      MC_TRY(const Field f, read_field(in));
      if (f.id == 1) p.text = f.bytes;
      if (f.id == 2) p.score = std::bit_cast<float>(static_cast<uint32_t>(f.number));
      if (f.id == 3) p.kind = f.number;
    }
    return add(std::move(p));
  }

  Result<> add(Tokenizer::Piece p) {
    auto& [text, score, kind] = p;
    const auto id = static_cast<int32_t>(t_.pieces_.size());
    if (t_.pieces_.size() >= kPiecesMax || text.size() > kPieceBytesMax || !std::isfinite(score))
      return fail(Code::kCorrupt, "piece %d ('%s') is out of bounds", id, escape(text).c_str());
    std::string bytes;
    scores_.push_back(score);
    if (kind == kByte) {
      const auto byte = byte_of_piece(text);
      if (!byte)
        return fail(Code::kCorrupt, "piece %d ('%s') should be a byte such as <0x0A>", id,
                    escape(text).c_str());
      unknown_.bytes.resize(256, -1);
      unknown_.bytes[*byte] = id;
      bytes = static_cast<char>(*byte);
    } else if (kind == kNormal || kind == kUserDefined) {
      bytes = marks_to_spaces(text);
      if (!text.empty()) texts_.emplace_back(text, id);
    }
    if (kind == kUnknown) unknown_.token = id;
    // A prompt may spell what users defined, as a whole: runs of spaces or lines are such.
    if (kind == kControl || kind == kUserDefined)
      t_.marks_.add({.text = text, .token = id, .special = kind == kControl});
    // Byte pieces too are never what text spells.
    t_.add_piece(std::move(text), std::move(bytes), kind != kNormal && kind != kUserDefined);
    return {};
  }

  Result<> trainer(std::string_view in) {
    while (!in.empty()) {
      MC_TRY(const Field f, read_field(in));
      if (f.id == 3) model_type_ = f.number;
      if (f.id == 41) bos_ = static_cast<int64_t>(f.number);
    }
    return {};
  }

  Result<> normalizer(std::string_view in) {
    while (!in.empty()) {
      MC_TRY(const Field f, read_field(in));
      if (f.id == 2) charsmap_ = f.bytes;
      if (f.id == 3) prefix_space_ = f.number != 0;
      if (f.id == 4) collapse_spaces_ = f.number != 0;
      if (f.id == 5) mark_spaces_ = f.number != 0;
    }
    return {};
  }

  Result<> normalize() {
    Normalizer& n = t_.normalizer_;
    if (!charsmap_.empty()) {
      MC_TRY(Charsmap map, Charsmap::read(charsmap_));
      n.add([shared = std::make_shared<const Charsmap>(std::move(map))](
                std::string_view text) { return shared->replace(text); },
            0);
    }
    if (collapse_spaces_) n.add(without_extra_spaces, 0);
    if (prefix_space_)
      n.add([](std::string_view text) { return text.empty() ? "" : " " + std::string(text); }, 1);
    if (mark_spaces_)
      n.add([](std::string_view text) { return replaced(text, " ", kSpaceMark); }, 1);
    t_.drops_space_ = prefix_space_;
    return {};
  }

  Result<Tokenizer> finish() {
    if (t_.pieces_.empty())
      return fail(Code::kCorrupt, "not a SentencePiece model: it has no pieces");
    if (model_type_ != kBpe && model_type_ != kUnigram)
      return fail(Code::kUnsupported,
                  "a SentencePiece model of type %llu: want 1 (unigram) or 2 (BPE)",
                  static_cast<unsigned long long>(model_type_));
    for (size_t i = 0; i < unknown_.bytes.size(); ++i)
      if (unknown_.bytes[i] < 0)
        return fail(Code::kCorrupt, "there are byte pieces, but none for byte %zu", i);
    const auto token = [&](int64_t id) {
      return id >= 0 && static_cast<size_t>(id) < t_.pieces_.size() ? static_cast<int32_t>(id) : -1;
    };
    t_.bos_ = token(bos_);
    if (t_.bos_ >= 0) t_.before_ = {t_.bos_};
    if (token(eos_) >= 0) t_.after_ = {token(eos_)};
    MC_TRY_(normalize());
    unknown_.fuse = true;
    if (model_type_ == kUnigram) {
      t_.model_ = make_unigram(texts_, std::move(scores_), std::move(unknown_));
      return std::move(t_);
    }
    PieceTable table;
    for (const auto& [text, id] : texts_) table.add(text, id);
    t_.model_ = make_scored_bpe({std::move(table), std::move(scores_)}, std::move(unknown_));
    return std::move(t_);
  }

  Tokenizer t_;
  uint64_t model_type_ = kUnigram;  // when the file says nothing
  int64_t bos_ = 1, eos_ = -1;
  bool prefix_space_ = true, collapse_spaces_ = true, mark_spaces_ = true;
  std::string charsmap_;
  std::vector<std::pair<std::string, int32_t>> texts_;  // what text may become
  std::vector<double> scores_;                          // of all pieces
  Unknown unknown_;
};

Result<Tokenizer> Tokenizer::scored_pieces(std::vector<Piece> pieces, int64_t bos,
                                           bool prefix_space) {
  return SpmReader().scored(std::move(pieces), bos, prefix_space);
}

Result<Tokenizer> Tokenizer::unigram(UnigramParts parts) {
  return SpmReader().unigram(std::move(parts));
}

Result<Tokenizer> Tokenizer::sentencepiece(std::string_view model) {
  return SpmReader().read(model);
}

}  // namespace mc::model
