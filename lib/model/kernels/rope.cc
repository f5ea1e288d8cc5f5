#include "model/kernels/rope.h"

#include <cmath>

namespace mc::model {
namespace {
constexpr size_t kRotationStep = 256;
}  // namespace

RotaryEmbedding::RotaryEmbedding(const Rope& rope, uint32_t head_dim, uint64_t positions)
    : pairs_(rope.turned(head_dim) / 2) {
  const auto speeds = rope_frequencies(rope, head_dim);
  const auto rotation = [](double angle) { return std::complex(std::cos(angle), std::sin(angle)); };
  for (size_t i = 0; i < kRotationStep; ++i)
    for (const double s : speeds) fine_.push_back(rotation(s * static_cast<double>(i)));
  for (size_t i = 0; i <= positions / kRotationStep; ++i)
    for (const double s : speeds)
      coarse_.push_back(rope.scale * rotation(s * static_cast<double>(i * kRotationStep)));
}

template <class Take>
void RotaryEmbedding::each(size_t position, const Take& take) const {
  const auto* coarse = coarse_.data() + position / kRotationStep * pairs_;
  const auto* fine = fine_.data() + position % kRotationStep * pairs_;
  for (size_t j = 0; j < pairs_; ++j) {
    const std::complex<double> a = coarse[j], b = fine[j];
    take(j, static_cast<float>(a.real() * b.real() - a.imag() * b.imag()),
         static_cast<float>(a.real() * b.imag() + a.imag() * b.real()));
  }
}

void RotaryEmbedding::at(size_t position, std::complex<float>* rotations) const {
  each(position, [&](size_t j, float cosine, float sine) { rotations[j] = {cosine, sine}; });
}

void RotaryEmbedding::at(size_t position, float* cosines, float* sines) const {
  each(position, [&](size_t j, float cosine, float sine) {
    cosines[j] = cosine;
    sines[j] = sine;
  });
}

}  // namespace mc::model
