// Changes a row of logits before a token is drawn from it: biases and penalties, and reads
// log-probabilities from it.
//
// Order, as in vLLM: bias, penalties, then what sampler.h does (temperature, min-p, top-k, top-p).
//
// Thread: any. Pure. Source: Keskar et al. 2019 (repetition penalty); OpenAI API (the others).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace mc::model {

struct Bias {
  int32_t id = 0;
  float value = 0;  // added to the token's logit
};

struct Penalties {
  double presence = 0;    // less for each token that was generated
  double frequency = 0;   // less for each time that it was
  double repetition = 1;  // of those in the prompt too: positive logits divided by it, others times
  bool none() const { return presence == 0 && frequency == 0 && repetition == 1; }
};

// Ignores ids outside the row.
void add_bias(std::span<float> logits, std::span<const Bias> bias);
void penalize(std::span<float> logits, const Penalties& penalties, std::span<const int32_t> prompt,
              std::span<const int32_t> generated);

// The natural logarithm of the sum of e^logit: a token's log-probability is its logit less this.
double log_sum(std::span<const float> logits);
// The ids of the `n` greatest, in order; of equal ones the lower id first. Fewer in a short row.
std::vector<int32_t> likeliest(std::span<const float> logits, size_t n);

}  // namespace mc::model
