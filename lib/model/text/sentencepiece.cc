// SentencePiece .model files: a protobuf of pieces; few of its fields matter.
#include <bit>
#include <cmath>
#include <cstring>

#include "base/units.h"
#include "model/text/text.h"
#include "model/text/tokenizer.h"

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
  SpmReader() {
    t_.style_ = Tokenizer::Style::kSentencePiece;
    t_.prefix_space_ = t_.collapse_spaces_ = t_.mark_spaces_ = t_.fuse_unknown_ = true;
  }

  Result<Tokenizer> read(std::string_view model) {
    while (!model.empty()) {
      MC_TRY(const Field f, read_field(model));
      if (f.id == 1) MC_TRY_(piece(f.bytes));
      if (f.id == 2) MC_TRY_(trainer(f.bytes));
      if (f.id == 3) MC_TRY_(normalizer(f.bytes));
    }
    return finish();
  }

  Result<Tokenizer> assemble(std::vector<Tokenizer::Piece> pieces, int64_t bos, bool prefix_space) {
    for (Tokenizer::Piece& p : pieces) MC_TRY_(add(std::move(p)));
    model_type_ = kBpe;
    bos_ = bos;
    t_.prefix_space_ = prefix_space;
    t_.collapse_spaces_ = false;
    return finish();
  }

 private:
  static constexpr uint64_t kBpe = 2;
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
    if (kind == kByte) {
      const auto byte = byte_of_piece(text);
      if (!byte)
        return fail(Code::kCorrupt, "piece %d ('%s') should be a byte such as <0x0A>", id,
                    escape(text).c_str());
      t_.byte_tokens_.resize(256, -1);
      t_.byte_tokens_[*byte] = id;
      bytes = static_cast<char>(*byte);
    } else if (kind == kNormal || kind == kUserDefined) {
      bytes = marks_to_spaces(text);
      t_.joins_.emplace(text, Tokenizer::Join{-static_cast<double>(score), id});
    }
    if (kind == kUnknown) t_.unknown_ = id;
    if (kind == kControl || kind == kUserDefined) t_.marks_.add({text, id});
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
      if (f.id == 2 && !f.bytes.empty())
        return fail(Code::kUnsupported,
                    "this SentencePiece model normalizes characters (a table of %zu bytes): only "
                    "'identity' is supported",
                    f.bytes.size());
      if (f.id == 3) t_.prefix_space_ = f.number != 0;
      if (f.id == 4) t_.collapse_spaces_ = f.number != 0;
      if (f.id == 5) t_.mark_spaces_ = f.number != 0;
    }
    return {};
  }

  Result<Tokenizer> finish() {
    if (t_.pieces_.empty())
      return fail(Code::kCorrupt, "not a SentencePiece model: it has no pieces");
    if (model_type_ != kBpe)
      return fail(Code::kUnsupported, "a SentencePiece model of type %llu: want 2 (BPE)",
                  static_cast<unsigned long long>(model_type_));
    for (size_t i = 0; i < t_.byte_tokens_.size(); ++i)
      if (t_.byte_tokens_[i] < 0)
        return fail(Code::kCorrupt, "there are byte pieces, but none for byte %zu", i);
    if (bos_ >= 0 && static_cast<size_t>(bos_) < t_.pieces_.size())
      t_.bos_ = static_cast<int32_t>(bos_);
    t_.marks_.sort();
    return std::move(t_);
  }

  Tokenizer t_;
  uint64_t model_type_ = 1;  // unigram, when the file says nothing
  int64_t bos_ = 1;
};

Result<Tokenizer> Tokenizer::scored_pieces(std::vector<Piece> pieces, int64_t bos,
                                           bool prefix_space) {
  return SpmReader().assemble(std::move(pieces), bos, prefix_space);
}

Result<Tokenizer> Tokenizer::sentencepiece(std::string_view model) {
  return SpmReader().read(model);
}

}  // namespace mc::model
