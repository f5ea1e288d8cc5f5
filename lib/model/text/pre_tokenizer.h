// Cuts a text into words before byte pairs are merged. Its scanners match the patterns of GPT-2,
// Llama 3 and Qwen 2, digits, and words that begin with a space mark.
//
// The pieces of a text are all of it, in order. Bytes that are not UTF-8 count as punctuation.
//
// Errors: none. Thread: values. Pure. Source: the patterns themselves, quoted in pre_tokenizer.cc;
// HF tokenizers' pre-tokenizers Split, ByteLevel, Digits and Metaspace.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace mc::model {

enum class Split : uint8_t {
  kGpt2,
  kLlama3,       // words take one mark before them, digits go in threes
  kQwen2,        // the same, each digit alone
  kDigits,       // each digit is a piece
  kDigitRuns,    // each run of digits is a piece
  kMarkedWords,  // a piece begins at each U+2581
};

// The scanner of a regular expression, where it is one of those known.
std::optional<Split> split_of_pattern(std::string_view pattern);
std::string_view pattern_of(Split split);  // empty: it has none
std::vector<std::string_view> split(Split how, std::string_view text);

}  // namespace mc::model
