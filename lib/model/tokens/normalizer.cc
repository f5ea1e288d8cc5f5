#include "model/tokens/normalizer.h"

#include <memory>

#include "base/json.h"
#include "model/tokens/charsmap.h"
#include "model/tokens/regex.h"
#include "model/tokens/steps.h"
#include "model/tokens/text.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

constexpr size_t kFormShrinks = 4;   // no form makes more than four bytes of a text one
constexpr size_t kLowerShrinks = 3;  // U+212A
constexpr double kApart = 5.0 / 3;   // two spaces around an ideograph

// Writes what `each` makes of every character.
template <class Each>
std::string rewrite(std::string_view text, const Each& each) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    each(c.code, text.substr(0, c.size), out);
    text.remove_prefix(c.size);
  }
  return out;
}

std::string strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Character c = first_character(text);
    if (!is_white_space(c.code)) break;
    text.remove_prefix(c.size);
  }
  while (right && !text.empty()) {
    const Character c = last_character(text);
    if (!is_white_space(c.code)) break;
    text.remove_suffix(c.size);
  }
  return std::string(text);
}

std::string without_marks(std::string_view text) {
  return rewrite(text, [](char32_t code, std::string_view bytes, std::string& out) {
    if (!is_mark(code)) out += bytes;
  });
}

bool nmt_drops(char32_t c) {
  return (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F ||
         c == 0x9F;
}
bool nmt_blanks(char32_t c) {
  return c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
         c == 0xFFFD;
}
std::string nmt(std::string_view text) {
  return rewrite(text, [](char32_t code, std::string_view bytes, std::string& out) {
    if (nmt_blanks(code))
      out += ' ';
    else if (!nmt_drops(code))
      out += bytes;
  });
}

bool is_ideograph(char32_t c) {  // as BERT counts them
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

std::string bert_clean(std::string_view text) {
  return rewrite(text, [](char32_t code, std::string_view bytes, std::string& out) {
    const bool blank = code == '\t' || code == '\n' || code == '\r';
    if (code == 0 || code == 0xFFFD || (is_other(code) && !blank)) return;
    if (is_white_space(code))
      out += ' ';
    else
      out += bytes;
  });
}

struct Bert {
  bool clean, ideographs, accents, lower;

  std::string operator()(std::string_view text) const {
    std::string out = clean ? bert_clean(text) : std::string(text);
    if (ideographs)
      out = rewrite(out, [](char32_t code, std::string_view bytes, std::string& to) {
        const bool apart = is_ideograph(code);
        if (apart) to += ' ';
        to += bytes;
        if (apart) to += ' ';
      });
    if (accents)
      out = rewrite(normalized(out, NormalForm::kNfd),
                    [](char32_t code, std::string_view bytes, std::string& to) {
                      if (!is_nonspacing_mark(code)) to += bytes;
                    });
    return lower ? lower_case(out) : out;
  }
};

std::string replaced_by_regex(const Regex& regex, std::string_view text, std::string_view by) {
  std::string out;
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, valid_prefix(text));
    size_t kept = 0;
    for (size_t at = 0; at <= valid.size();) {
      const Regex::Match m = regex.find(valid, at);
      if (!m.found) break;
      out += valid.substr(kept, m.begin - kept);
      out += by;
      kept = m.end;
      at = m.end > m.begin        ? m.end
           : m.end < valid.size() ? m.end + first_character(valid.substr(m.end)).size
                                  : valid.size() + 1;
    }
    out += valid.substr(kept);
    text.remove_prefix(valid.size());
    const size_t invalid = invalid_prefix(text);
    out += text.substr(0, invalid);
    text.remove_prefix(invalid);
  }
  return out;
}

}  // namespace

std::string without_extra_spaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != ' ' || text[i - 1] != ' ') out += text[i];
  return out;
}

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t next = text.find(what, at);
    out += text.substr(at, next - at);
    if (next == std::string_view::npos) return out;
    out += by;
    at = next + what.size();
  }
}

void Normalizer::add(Step step, size_t shrinks) {
  steps_.push_back(std::move(step));
  if (__builtin_mul_overflow(shrinks_, shrinks, &shrinks_)) shrinks_ = 0;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) out = step(out);
  return out;
}

Result<Normalizer> Normalizer::read(const Json* json) {
  constexpr const char* kPart = "normalizer";
  Normalizer made;
  MC_TRY(const auto steps, steps_of(json, kPart, "normalizers"));
  for (const Json* step : steps)
    if (const auto done = made.read_step(*step); !done)
      return fail(about_step(kPart, *step, done.error()));
  return made;
}

Result<> Normalizer::read_replace(const Json& step) {
  const std::string by = text_of(step, "content");
  const Json* pattern = member(step, "pattern");
  const std::string what = pattern == nullptr ? "" : text_of(*pattern, "String");
  if (what.empty()) {
    MC_TRY(Regex regex, read_pattern(step));
    // A pattern that may match nothing does so before each character, and at the end.
    const size_t least = regex.least();
    MC_TRY_(least > 0 ? growth_.by(growth_of(least, by.size()))
                      : growth_.by(growth_of(1, by.size() + 1), by.size()));
    add([regex, by](std::string_view text) { return replaced_by_regex(regex, text, by); }, 0);
    return {};
  }
  MC_TRY_(growth_.by(growth_of(what.size(), by.size())));
  const size_t shrinks = by.empty() ? 0 : (what.size() + by.size() - 1) / by.size();
  add([what, by](std::string_view text) { return replaced(text, what, by); }, shrinks);
  return {};
}

Result<> Normalizer::read_step(const Json& step) {
  struct Form {
    std::string_view type;
    NormalForm form;
    double grows;
  };
  constexpr Form kForms[] = {{"NFC", NormalForm::kNfc, Growth::kCanonical},
                             {"NFD", NormalForm::kNfd, Growth::kCanonical},
                             {"NFKC", NormalForm::kNfkc, Growth::kCompatible},
                             {"NFKD", NormalForm::kNfkd, Growth::kCompatible}};
  const std::string type = text_of(step, "type");
  for (const Form& f : kForms)
    if (type == f.type) {
      MC_TRY_(growth_.form(f.grows));
      add([form = f.form](std::string_view text) { return normalized(text, form); }, kFormShrinks);
      return {};
    }
  if (type == "Lowercase") {
    MC_TRY_(growth_.form(Growth::kLower));
    add(lower_case, kLowerShrinks);
  } else if (type == "Strip") {
    const bool left = flag_of(step, "strip_left", true), right = flag_of(step, "strip_right", true);
    add([left, right](std::string_view text) { return strip(text, left, right); }, 0);
  } else if (type == "StripAccents") {
    add(without_marks, 0);
  } else if (type == "Nmt") {
    add(nmt, 0);
  } else if (type == "ByteLevel") {
    MC_TRY_(growth_.by(kLettersGrow));
    add(bytes_to_letters, 1);
  } else if (type == "Prepend") {
    std::string what = text_of(step, "prepend");
    MC_TRY_(growth_.by(1, what.size()));
    add([what = std::move(what)](
            std::string_view text) { return text.empty() ? "" : what + std::string(text); },
        1);
  } else if (type == "Replace") {
    return read_replace(step);
  } else if (type == "Precompiled") {
    MC_TRY(Charsmap map, Charsmap::read_base64(text_of(step, "precompiled_charsmap")));
    MC_TRY_(growth_.by(map.grows()));
    add([shared = std::make_shared<const Charsmap>(std::move(map))](
            std::string_view text) { return shared->replace_graphemes(text); },
        0);
  } else if (type == "BertNormalizer") {
    const bool lower = flag_of(step, "lowercase", true);
    const Bert bert{flag_of(step, "clean_text", true), flag_of(step, "handle_chinese_chars", true),
                    flag_of(step, "strip_accents", lower), lower};
    if (bert.ideographs) MC_TRY_(growth_.by(kApart));
    if (bert.accents) MC_TRY_(growth_.form(Growth::kCanonical));
    if (bert.lower) MC_TRY_(growth_.form(Growth::kLower));
    add(bert, 0);
  } else {
    return fail(Code::kUnsupported, "this type is not supported");
  }
  return {};
}

}  // namespace mc::model
