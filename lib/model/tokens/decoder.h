// Turns a piece of the vocabulary into the bytes that it stands for within a text.
//
// A text is the bytes of its tokens, one after the other; what a decoder does to the first or last
// of them alone is said apart. So an answer can be shown token by token.
//
// Errors: kInvalid, kUnsupported, with the step's name. Thread: const calls, any. Source: HF
// tokenizers' decoders.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/tokens/growth.h"

namespace mc::model {

class Decoder {
 public:
  // `decoder` of a tokenizer.json; null: none, and pieces stand for themselves.
  static Result<Decoder> read(const Json* json);

  bool empty() const { return steps_.empty() && !drops_space_; }
  std::string bytes(std::string piece) const;
  bool drops_space() const { return drops_space_; }  // one, where a text begins with it
  bool drops_last_space() const { return drops_last_space_; }

 private:
  using Step = std::function<std::string(std::string)>;
  Result<> read_step(const Json& step);
  Result<> read_strip(const Json& step);
  std::vector<Step> steps_;
  Growth growth_;
  bool drops_space_ = false, drops_last_space_ = false, fused_ = false;
};

}  // namespace mc::model
