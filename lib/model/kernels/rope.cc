#include "model/kernels/rope.h"

#include <cmath>

namespace mc::model {
namespace {
constexpr size_t kTurnStep = 256;
}  // namespace

Turns::Turns(const ModelConfig& config) : pairs_(config.head_dim / 2) {
  const auto speeds = rope_frequencies(config.rope, config.head_dim);
  const auto turn = [](double angle) { return std::complex(std::cos(angle), std::sin(angle)); };
  for (size_t i = 0; i < kTurnStep; ++i)
    for (const double s : speeds) fine_.push_back(turn(s * static_cast<double>(i)));
  for (size_t i = 0; i <= config.context_max / kTurnStep; ++i)
    for (const double s : speeds)
      coarse_.push_back(config.rope.scale * turn(s * static_cast<double>(i * kTurnStep)));
}

void Turns::at(size_t position, std::complex<float>* turns) const {
  const auto* coarse = coarse_.data() + position / kTurnStep * pairs_;
  const auto* fine = fine_.data() + position % kTurnStep * pairs_;
  for (size_t j = 0; j < pairs_; ++j) {
    const std::complex<double> a = coarse[j], b = fine[j];
    turns[j] = {static_cast<float>(a.real() * b.real() - a.imag() * b.imag()),
                static_cast<float>(a.real() * b.imag() + a.imag() * b.real())};
  }
}

}  // namespace mc::model
