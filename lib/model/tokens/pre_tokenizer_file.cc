// Pre-tokenizers of a tokenizer.json as cuts by regular expressions, and rewriting steps.
#include <array>

#include "base/json.h"
#include "model/tokens/pre_tokenizer.h"
#include "model/tokens/scripts.h"
#include "model/tokens/steps.h"
#include "model/tokens/text.h"

namespace mc::model {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Of the programs' own character classes, not of a file's pattern; in PCRE2's syntax.
constexpr std::string_view kPunctuationPattern = R"([!-\/:-@\[-`{-~\p{P}])";
constexpr std::string_view kWordOrNot = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|)"
                                        R"([^\s\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+)";

struct Behaviour {
  std::string_view name;
  Keep keep;
};
constexpr std::array<Behaviour, 5> kBehaviours = {{{"Removed", Keep::kRemoved},
                                                   {"Isolated", Keep::kIsolated},
                                                   {"MergedWithPrevious", Keep::kMergedPrevious},
                                                   {"MergedWithNext", Keep::kMergedNext},
                                                   {"Contiguous", Keep::kContiguous}}};

Result<Keep> behaviour_of(const Json& step, const char* fallback) {
  std::string name = text_of(step, "behavior");
  if (name.empty()) name = fallback;
  for (const Behaviour& b : kBehaviours)
    if (b.name == name) return b.keep;
  return fail(Code::kUnsupported, "behavior '%s' is not supported", name.c_str());
}

}  // namespace

struct PreTokenizer::Reader {
  PreTokenizer& made;
  Growth growth;

  Result<> cut(std::string_view pattern, Keep keep, bool inverted = false) {
    MC_TRY(Regex regex, Regex::compile(pattern));
    made.add_cut(std::move(regex), keep, inverted);
    return {};
  }

  Result<> split(const Json& step) {
    MC_TRY(const Keep keep, behaviour_of(step, ""));
    MC_TRY(Regex regex, read_pattern(step));
    made.add_cut(std::move(regex), keep, flag_of(step, "invert", false));
    return {};
  }

  Result<> letters(bool prefix, bool written) {
    if (!prefix && !written) return {};
    // A piece may be one byte.
    MC_TRY_(growth.by(growth_of(1, (prefix ? 2 : 1) * (written ? kLettersGrow : 1))));
    made.steps_.push_back(
        {.kind = Step::Kind::kWriteLetters, .prefix = prefix, .letters = written});
    return {};
  }

  Result<> byte_level(const Json& step, bool last) {
    const bool prefix = flag_of(step, "add_prefix_space", true),
               regex = flag_of(step, "use_regex", true);
    made.adds_space_ = made.adds_space_ || prefix;
    made.byte_level_ = last;
    MC_TRY_(letters(prefix, !last && !regex));
    if (!regex) return {};
    MC_TRY_(cut(kGpt2Pattern, Keep::kIsolated));
    return letters(false, !last);
  }

  Result<> metaspace(const Json& step) {
    std::string scheme = text_of(step, "prepend_scheme"), mark = text_of(step, "replacement");
    if (scheme.empty()) scheme = flag_of(step, "add_prefix_space", true) ? "always" : "never";
    if (scheme != "always" && scheme != "never" && scheme != "first")
      return fail(Code::kUnsupported, "prepend_scheme '%s' is not supported", scheme.c_str());
    if (mark.empty()) mark = kSpaceMark;
    MC_TRY_(growth.by(growth_of(1, mark.size() + (scheme == "never" ? 0 : 1))));
    made.steps_.push_back({.kind = Step::Kind::kMarkSpaces,
                           .mark = mark,
                           .prefix = scheme != "never",
                           .only_first = scheme == "first"});
    made.marks_spaces_ = true;
    made.adds_space_ = made.adds_space_ || scheme != "never";
    return flag_of(step, "split", true) ? cut(quoted_pattern(mark), Keep::kMergedNext) : Result<>();
  }

  Result<> fixed_length(const Json& step) {
    MC_TRY(const uint64_t length, get_uint_or(step, "length", 5));
    if (length == 0 || length > UINT16_MAX)
      return fail(Code::kInvalid, "a length of %llu: want 1 to %u",
                  static_cast<unsigned long long>(length), unsigned{UINT16_MAX});
    return cut(strf("(?s:.{1,%llu})", static_cast<unsigned long long>(length)), Keep::kIsolated);
  }

  Result<> read(const Json& step, bool last) {
    const std::string type = text_of(step, "type");
    if (type == "ByteLevel") return byte_level(step, last);
    if (type == "Split") return split(step);
    if (type == "Metaspace") return metaspace(step);
    if (type == "Whitespace") return cut(kWordOrNot, Keep::kRemoved, true);
    if (type == "WhitespaceSplit") return cut(R"(\s)", Keep::kRemoved);
    if (type == "Digits")
      return cut(R"(\p{N})",
                 flag_of(step, "individual_digits", false) ? Keep::kIsolated : Keep::kContiguous);
    if (type == "Punctuation") {
      MC_TRY(const Keep keep, behaviour_of(step, "Isolated"));
      return cut(kPunctuationPattern, keep);
    }
    if (type == "BertPreTokenizer") {
      MC_TRY_(cut(R"(\s)", Keep::kRemoved));
      return cut(kPunctuationPattern, Keep::kIsolated);
    }
    if (type == "CharDelimiterSplit") {
      const std::string delimiter = text_of(step, "delimiter");
      if (delimiter.empty()) return fail(Code::kInvalid, "there is no 'delimiter'");
      return cut(quoted_pattern(delimiter), Keep::kRemoved);
    }
    if (type == "UnicodeScripts") return cut(script_pattern(), Keep::kIsolated);
    if (type == "FixedLength") return fixed_length(step);
    return fail(Code::kUnsupported, "this type is not supported");
  }
};

Result<PreTokenizer> PreTokenizer::read(const Json* json, const Growth& before) {
  constexpr const char* kPart = "pre_tokenizer";
  PreTokenizer made;
  Reader reader{made, before};
  MC_TRY(const auto steps, steps_of(json, kPart, "pretokenizers"));
  for (size_t i = 0; i < steps.size(); ++i)
    if (const auto done = reader.read(*steps[i], i + 1 == steps.size()); !done)
      return fail(about_step(kPart, *steps[i], done.error()));
  return made;
}

}  // namespace mc::model
