// Defines what is said of the probability of one token of an answer.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <vector>

#include "wire/codec.h"

namespace mc::serve {

inline constexpr size_t kTopLogprobsMax = 20;

// Natural logarithms, as the model gives them: before biases, penalties and temperature. -9999
// where there is no number.
struct TokenLogprobs {
  double logprob = 0;                  // of the token that was drawn
  std::vector<int32_t> top{};          // the likeliest tokens, in order
  std::vector<double> top_logprobs{};  // of each of these
  static void fields(auto& a, auto& m) {
    a.lean(m.logprob, wire::at_most<kTopLogprobsMax>(m.top),
           wire::at_most<kTopLogprobsMax>(m.top_logprobs));
  }
};

}  // namespace mc::serve
