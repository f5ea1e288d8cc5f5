// Rewrites a text before it is cut: normal forms, cases, accents, replacements, space marks.
//
// Bytes that are not UTF-8 stay, but that regular expressions do not match them.
//
// Errors: kInvalid, kUnsupported, with the step's name. Thread: const calls, any. Source: HF
// tokenizers' normalizers; SentencePiece's normalizer.cc.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/tokens/growth.h"

namespace mc::model {

class Normalizer {
 public:
  using Step = std::function<std::string(std::string_view)>;
  // `normalizer` of a tokenizer.json; null: none.
  static Result<Normalizer> read(const Json* json);
  // `shrinks`: how many bytes one byte of the result may stand for; 0: there is no bound.
  void add(Step step, size_t shrinks);

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;
  size_t shrinks() const { return shrinks_; }
  const Growth& growth() const { return growth_; }  // of what was read

 private:
  Result<> read_step(const Json& step);
  Result<> read_replace(const Json& step);
  std::vector<Step> steps_;
  size_t shrinks_ = 1;
  Growth growth_;
};

// Steps that SentencePiece models use too.
std::string without_extra_spaces(std::string_view text);  // at the ends, and all but one within
std::string replaced(std::string_view text, std::string_view what, std::string_view by);

}  // namespace mc::model
