// Compiles what an answer must look like, as a client writes it, into an automaton.
//
// Errors: kInvalid and kUnsupported with what is wrong and where; kNoSpace for what is too large.
// Work is bounded by kTextMax and Automaton::kStatesMax, whatever the text: tenths of a second.
// Thread: values; any. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "model/grammar/automaton.h"

namespace mc::model::grammar {

inline constexpr size_t kTextMax = 256 << 10;  // bytes

enum class Form : uint8_t {
  kNone = 0,
  kJsonObject = 1,  // no text
  kJsonSchema = 2,
  kRegex = 3,   // of the whole answer
  kChoice = 4,  // a JSON array of texts
  kGbnf = 5,
};

Result<std::shared_ptr<const Automaton>> compile(Form form, const std::string& text);

}  // namespace mc::model::grammar
