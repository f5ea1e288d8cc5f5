// Parses a Jinja template into its tree.
//
// Tags: if, for, set, macro, filter, with, raw, break, continue, generation (which is passed
// through). Errors: kInvalid, kUnsupported for other tags of Jinja, with the line. Nested
// kNestingMax deep at most. Pure. Thread: any.
#pragma once
#include <string_view>

#include "model/template/syntax.h"

namespace mc::model::jinja {

inline constexpr unsigned kNestingMax = 100;
inline constexpr unsigned kChainMax = 500;  // operators of a statement, or elifs of an if
Result<Block> parse(std::string_view source);

}  // namespace mc::model::jinja
