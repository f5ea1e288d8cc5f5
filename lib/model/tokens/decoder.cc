#include "model/tokens/decoder.h"

#include "base/json.h"
#include "base/units.h"
#include "model/tokens/normalizer.h"
#include "model/tokens/steps.h"
#include "model/tokens/text.h"

namespace mc::model {
namespace {

// As BERT's decoder writes punctuation and contractions.
std::string cleaned(std::string text) {
  constexpr std::string_view kRules[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                            {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                            {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                            {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replaced(text, from, to);
  return text;
}

std::string byte_or_piece(std::string piece) {
  const auto byte = byte_of_piece(piece);
  return byte ? std::string(1, static_cast<char>(*byte)) : piece;
}

}  // namespace

std::string Decoder::bytes(std::string piece) const {
  for (const Step& step : steps_) piece = step(std::move(piece));
  return piece;
}

Result<Decoder> Decoder::read(const Json* json) {
  constexpr const char* kPart = "decoder";
  Decoder made;
  MC_TRY(const auto steps, steps_of(json, kPart, "decoders"));
  for (const Json* step : steps)
    if (const auto done = made.read_step(*step); !done)
      return fail(about_step(kPart, *step, done.error()));
  return made;
}

// At the ends of a text that was put together it takes off spaces, and one is known here.
Result<> Decoder::read_strip(const Json& step) {
  MC_TRY(const uint64_t start, get_uint_or(step, "start", 0));
  MC_TRY(const uint64_t stop, get_uint_or(step, "stop", 0));
  const std::string content = text_of(step, "content");
  if (!fused_ || content != " " || start > 1 || stop > 1)
    return fail(Code::kUnsupported,
                "it strips '%s' %llu and %llu times: want a space, at most once, after Fuse",
                escape(content).c_str(), static_cast<unsigned long long>(start),
                static_cast<unsigned long long>(stop));
  drops_space_ = drops_space_ || start == 1;
  drops_last_space_ = drops_last_space_ || stop == 1;
  return {};
}

Result<> Decoder::read_step(const Json& step) {
  const std::string type = text_of(step, "type");
  if (type == "Strip") return read_strip(step);
  if (type == "Fuse") {
    fused_ = true;
  } else if (type == "ByteLevel") {
    steps_.push_back([](std::string piece) { return letters_to_bytes(piece).value_or(piece); });
  } else if (type == "ByteFallback") {
    steps_.push_back(byte_or_piece);
  } else if (type == "Metaspace") {
    std::string mark = text_of(step, "replacement"), scheme = text_of(step, "prepend_scheme");
    if (mark.empty()) mark = kSpaceMark;
    if (scheme.empty()) scheme = flag_of(step, "add_prefix_space", true) ? "always" : "never";
    drops_space_ = scheme != "never";
    steps_.push_back([mark](std::string piece) { return replaced(piece, mark, " "); });
  } else if (type == "Replace") {
    const Json* pattern = member(step, "pattern");
    const std::string what = pattern == nullptr ? "" : text_of(*pattern, "String");
    if (what.empty()) return fail(Code::kUnsupported, "want a pattern that is a String");
    std::string by = text_of(step, "content");
    MC_TRY_(growth_.by(growth_of(what.size(), by.size())));
    steps_.push_back(
        [what, by = std::move(by)](std::string piece) { return replaced(piece, what, by); });
  } else if (type == "WordPiece") {
    const std::string prefix = text_of(step, "prefix");
    const bool clean = flag_of(step, "cleanup", true);
    drops_space_ = true;
    MC_TRY_(growth_.by(1, 1));
    steps_.push_back([prefix, clean](std::string piece) {
      const bool within = !prefix.empty() && piece.starts_with(prefix);
      piece = within ? piece.substr(prefix.size()) : " " + piece;
      return clean ? cleaned(std::move(piece)) : piece;
    });
  } else if (type == "BPEDecoder") {
    std::string suffix = text_of(step, "suffix");
    if (suffix.empty()) suffix = "</w>";
    drops_last_space_ = true;
    steps_.push_back([suffix](std::string piece) { return replaced(piece, suffix, " "); });
  } else {
    return fail(Code::kUnsupported, "this type is not supported");
  }
  return {};
}

}  // namespace mc::model
