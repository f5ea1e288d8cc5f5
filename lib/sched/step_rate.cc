#include "sched/step_rate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mc::sched {
namespace {

constexpr double kStepKept = 0.95;   // of a step's weight, at each later one
constexpr double kStepPrior = 0.5;   // of a step: that the three factors are alike
constexpr double kStepOffMax = 100;  // times the model: more is a fault, not a trend
constexpr double kStepNoise = 0.1;   // steps differ so much for other reasons
constexpr double kRatioWeight = 0.1;
constexpr double kStepFactorMin = 0.05;  // of the mean ratio

}  // namespace

StepRate::Row StepRate::parts_ms(double batch, double context) const {
  return {1e3 * model_.t0, 1e3 * model_.t1 * std::max(0.0, batch - 1), 1e3 * model_.t2 * context};
}

double StepRate::sum(const Row& parts, const Row& factors) {
  return parts[0] * factors[0] + parts[1] * factors[1] + parts[2] * factors[2];
}

double StepRate::predict_ms(double batch, double context) const {
  if (!(batch > 0)) return 0;
  if (version_ == 0)  // nothing is known but the model
    return 1e3 * (model_.t0 + model_.t1 * (batch - 1) + model_.t2 * context);
  return sum(parts_ms(batch, context), used_);
}

void StepRate::learn(double batch, double context, double measured_ms) {
  Row row = parts_ms(batch, context);
  const double model = row[0] + row[1] + row[2];
  if (!(model > 0) || !std::isfinite(model) || !(measured_ms > 0) || !std::isfinite(measured_ms))
    return;
  const double ms = std::clamp(measured_ms, model / kStepOffMax, model * kStepOffMax);
  // The mean moves at once where little was seen; a step that is far off moves it by the noise.
  const double share = std::max(kRatioWeight, 1 / static_cast<double>(++seen_));
  const double off = seen_ < 5 ? 1 : std::max(1.0, std::abs(ms / model / ratio_ - 1) / kStepNoise);
  ratio_ += share * (ms / model - ratio_) / std::sqrt(off);
  const double now = sum(row, found_);
  const double far = std::max(1.0, std::abs(ms - now) / (kStepNoise * now));
  const double weight = seen_ < 5 ? 1 : 1 / far;
  for (double& part : row) part /= ms;
  for (size_t i = 0; i < 3; ++i) {
    sums_[i] = kStepKept * sums_[i] + weight * row[i];
    for (size_t j = 0; j < 3; ++j)
      squares_[i][j] = kStepKept * squares_[i][j] + weight * row[i] * row[j];
  }
  fit();
  if (std::abs(sum(parts_ms(batch, context), found_) - predict_ms(batch, context)) >
      kStale * predict_ms(batch, context)) {
    used_ = found_;
    ++version_;
  }
}

// Solves for the factors, with `ratio_` for each as a measurement of its own.
void StepRate::fit() {
  std::array<std::array<double, 4>, 3> a{};
  const double prior = kStepPrior / (ratio_ * ratio_);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) a[i][j] = squares_[i][j];
    a[i][i] += prior * 0.01;
    a[i][3] = sums_[i] + prior * 0.01 * ratio_;
  }
  for (size_t i = 0; i < 3; ++i)  // positive definite: no pivoting
    for (size_t k = 0; k < 3; ++k) {
      if (k == i) continue;
      const double by = a[k][i] / a[i][i];
      for (size_t j = i; j < 4; ++j) a[k][j] -= by * a[i][j];
    }
  for (size_t i = 0; i < 3; ++i) found_[i] = std::max(kStepFactorMin * ratio_, a[i][3] / a[i][i]);
}

void StepWatch::saw(uint64_t request, bool first, size_t tokens, uint64_t context) {
  requests_.push_back(request);
  context_ += context;
  went_on_ |= !first;
  several_ |= tokens != 1;
}

std::optional<StepWatch::Step> StepWatch::end(Time now) {
  const Time before = std::exchange(last_, now);
  std::vector<uint64_t> requests = std::exchange(requests_, {});
  const uint64_t context = std::exchange(context_, 0);
  const bool went_on = std::exchange(went_on_, false), several = std::exchange(several_, false);
  std::sort(requests.begin(), requests.end());
  const bool twice = std::adjacent_find(requests.begin(), requests.end()) != requests.end();
  if (requests.empty() || !went_on || several || twice || before == Time{}) return std::nullopt;
  return Step{requests.size(), context, to_ms(now - before)};
}

}  // namespace mc::sched
