// A regular expression over UTF-8, as tokenizer files write them.
//
// Files follow Oniguruma's syntax. compile() translates what PCRE2 reads otherwise: \s, \w, \d and
// \h as sets of Unicode, `{n,m}+` as a repetition, long names of categories, `^` and `$` at each
// line. Sets within sets and `&&` are refused.
//
// Errors: kInvalid, with the place in the pattern, and for a pattern that backtracks without end on
// a run of one character. A search that exceeds the match limit or the stack is reported by
// `failed`: it never waits without end. Thread: const calls, any. Source: PCRE2's manual;
// Oniguruma's doc/RE.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

struct pcre2_real_code_8;

namespace mc::model {

class Regex {
 public:
  // Steps of one search: a tokenizer's own patterns need a few for each character.
  static constexpr unsigned kStepsMax = 1u << 20;

  static Result<Regex> compile(std::string_view pattern);
  // As it is written, in PCRE2's own syntax.
  static Result<Regex> compile_native(std::string_view pattern);

  struct Match {
    size_t begin = 0, end = 0;
    bool found = false;
    bool failed = false;  // a limit was exceeded: nothing is known of the rest of the text
  };
  // The first match at `from` or after it. Requires: `text` is valid UTF-8, `from` a character's.
  Match find(std::string_view text, size_t from) const;
  // A match has at least as many characters; 0 where it may be empty.
  size_t least() const { return least_; }

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
  size_t least_ = 0;
  bool jit_ = false;
};

}  // namespace mc::model
