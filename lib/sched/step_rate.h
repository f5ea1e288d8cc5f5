// Learns how long decode steps take, by batch and context: the model's t0, t1 and t2, each times a
// factor of its own.
//
// The factors are fitted by relative least squares; newer steps count more, and what is far off
// counts little. What the steps do not tell, as while the batch is always one request, follows the
// mean of all of them. The numbers that predictions use change only when they are off by kStale, so
// that what is sorted by them seldom has to be sorted again.
//
// Thread: one owner. Pure.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "cost/model_spec.h"

namespace mc::sched {

class StepRate {
 public:
  static constexpr double kStale = 0.02;

  explicit StepRate(const cost::CostModel& model) : model_(model) {}

  // `batch` requests whose contexts are `context` tokens in all.
  double predict_ms(double batch, double context) const;
  void learn(double batch, double context, double measured_ms);
  // Another number when predictions changed.
  uint64_t version() const { return version_; }
  const std::array<double, 3>& factors() const { return used_; }

 private:
  using Row = std::array<double, 3>;
  Row parts_ms(double batch, double context) const;
  static double sum(const Row& parts, const Row& factors);
  void fit();

  const cost::CostModel model_;
  std::array<Row, 3> squares_{};  // of the normal equations, by weight
  Row sums_{};
  double ratio_ = 1;  // measured to the model, lately
  Row found_{1, 1, 1}, used_{1, 1, 1};
  uint64_t seen_ = 0, version_ = 0;
};

// The time between two batches of tokens of a decode worker, while some request was in both: one
// step of it.
//
// Thread: one owner. Pure: time is an argument.
class StepWatch {
 public:
  // A request of the present batch, with how many tokens now. `first`: it had none before.
  void saw(uint64_t request, bool first, size_t tokens, uint64_t context);
  struct Step {
    uint64_t batch = 0, context = 0;
    double ms = 0;
  };
  std::optional<Step> end(Time now);  // the batch is complete

 private:
  std::vector<uint64_t> requests_;
  uint64_t context_ = 0;
  bool went_on_ = false, several_ = false;
  Time last_{};
};

}  // namespace mc::sched
