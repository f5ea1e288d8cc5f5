// A pattern whose matches are runs of one Unicode script, for the pre-tokenizer UnicodeScripts.
//
// Spaces and unassigned characters belong to the run before them; Hiragana, Katakana and U+30FC
// count as Han.
//
// Thread: any. Pure. Source: UAX 24; HF tokenizers' UnicodeScripts.
#pragma once
#include <string>

namespace mc::model {

std::string script_pattern();

}  // namespace mc::model
