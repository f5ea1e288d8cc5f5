// Reads regular expressions: the part of ECMAScript's and Python's syntax that is a regular
// language.
//
// Groups, alternatives, classes, . \d \w \s and their opposites, escapes of characters, * + ? {n,m}
// (lazy ones mean the same here), ^ at the beginning and $ at the end of an alternative of the
// whole. Errors: kInvalid where it is wrong; kUnsupported with the name of what is not done:
// references back, lookaround, \b, flags, \p.
//
// Thread: values. Pure.
#pragma once
#include <functional>
#include <string_view>

#include "base/result.h"
#include "model/grammar/rules.h"

namespace mc::model::grammar {

struct RegexUse {
  // How one of some characters is written: as it is, or as in a JSON string.
  std::function<Rules::Node(Rules&, const Characters&)> write;
  // What stands before and after a match that is not anchored; none: it is the whole text.
  Rules::Node around = 0;
  bool anywhere = false;
};

Result<Rules::Node> read_regex(Rules& rules, std::string_view pattern, const RegexUse& use);
// As the whole text, in UTF-8.
Result<Rules::Node> read_regex(Rules& rules, std::string_view pattern);

// The next character of UTF-8 text; kInvalid where it is none.
Result<uint32_t> take_character(std::string_view& text);

}  // namespace mc::model::grammar
