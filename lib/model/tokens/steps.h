// Reads the steps of a tokenizer.json: normalizers, pre-tokenizers, post-processors, decoders.
//
// Thread: any.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"

namespace mc::model {

// The member as a text or a flag; the fallback where it is absent or of another type.
std::string text_of(const Json& object, const char* key);
bool flag_of(const Json& object, const char* key, bool fallback);

// The steps of a part, those of Sequences in their place; `part` ("normalizer") and `list`
// ("normalizers") as the file names them. Errors: kInvalid for a step that is no object or has no
// type, and for more than kStepsMax of them.
inline constexpr size_t kStepsMax = 256;
Result<std::vector<const Json*>> steps_of(const Json* step, const char* part, const char* list);
// "normalizer Strip: ...", of one code.
Error about_step(const char* part, const Json& step, const Error& error);

// A pattern `{"String": ...}` or `{"Regex": ...}` as a regular expression. Errors: kInvalid.
class Regex;
Result<Regex> read_pattern(const Json& step);
// A pattern that matches exactly this text.
std::string quoted_pattern(std::string_view text);

}  // namespace mc::model
