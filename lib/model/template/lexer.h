// Cuts a Jinja template into tokens, with the white space rules that chat templates are written
// for: trim_blocks and lstrip_blocks are on, a newline at the end of the file is dropped.
//
// Errors: kInvalid, with the line. Pure. Thread: any.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::model::jinja {

struct Token {
  enum class Kind : uint8_t {
    kText,  // outside of tags
    kPrintBegin,
    kPrintEnd,
    kTagBegin,
    kTagEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kSign,  // operators, brackets, and others
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of kString: its value
  int64_t integer = 0;
  double number = 0;
  unsigned line = 1;
};

Result<std::vector<Token>> tokens_of(std::string_view source);

}  // namespace mc::model::jinja
