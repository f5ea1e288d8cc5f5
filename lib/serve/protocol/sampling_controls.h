// How a request wants its tokens drawn, beyond temperature, top-k and top-p, and what it wants to
// know of them.
//
// Thread: values.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "serve/protocol/token_logprobs.h"
#include "wire/codec.h"

namespace mc::serve {

inline constexpr size_t kBiasMax = 300;  // tokens of one request
inline constexpr double kBiasLimit = 100, kPenaltyLimit = 2;
inline constexpr double kRepetitionLeast = 0.01, kRepetitionMost = 100;

// The meaning is that of lib/model/forward/logits.h and sampler.h.
struct SamplingControls {
  double min_p = 0;  // 0 to 1
  double presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  std::vector<int32_t> bias_tokens{};
  std::vector<double> bias{};  // of each of these
  uint32_t logprobs = 0;       // 1 and the likeliest tokens to tell of with each; 0: none of it

  static void fields(auto& a, auto& m) {
    a(m.min_p, m.presence_penalty, m.frequency_penalty, m.repetition_penalty,
      wire::at_most<kBiasMax>(m.bias_tokens), wire::at_most<kBiasMax>(m.bias), m.logprobs);
  }
  bool none() const {
    return min_p == 0 && presence_penalty == 0 && frequency_penalty == 0 &&
           repetition_penalty == 1 && bias_tokens.empty() && logprobs == 0;
  }
  // Whether all is in its range; of a peer nothing is believed.
  bool valid(uint32_t vocab) const {
    const auto within = [](double v, double low, double high) { return v >= low && v <= high; };
    return within(min_p, 0, 1) && within(presence_penalty, -kPenaltyLimit, kPenaltyLimit) &&
           within(frequency_penalty, -kPenaltyLimit, kPenaltyLimit) &&
           within(repetition_penalty, kRepetitionLeast, kRepetitionMost) &&
           bias.size() == bias_tokens.size() && bias.size() <= kBiasMax &&
           logprobs <= kTopLogprobsMax + 1 &&
           std::all_of(bias.begin(), bias.end(),
                       [&](double b) { return within(b, -kBiasLimit, kBiasLimit); }) &&
           std::all_of(bias_tokens.begin(), bias_tokens.end(),
                       [&](int32_t t) { return t >= 0 && static_cast<uint32_t>(t) < vocab; });
  }
};

}  // namespace mc::serve
