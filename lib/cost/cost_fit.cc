#include "cost/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

namespace mc::cost {
namespace {

constexpr size_t kMost = 4;  // coefficients
using Row = std::array<double, kMost>;

// Least squares for rows x coefficients = 1 over the coefficients in `used` (a bit each); the
// others are 0. Returns nothing when the rows do not determine them. Columns are of similar size.
std::optional<Row> least_squares(std::span<const Row> rows, unsigned used) {
  std::array<std::array<double, kMost + 1>, kMost> a{};  // the normal equations
  std::vector<size_t> columns;
  for (size_t i = 0; i < kMost; ++i)
    if (used >> i & 1) columns.push_back(i);
  const size_t n = columns.size();
  for (const Row& row : rows)
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) a[i][j] += row[columns[i]] * row[columns[j]];
      a[i][n] += row[columns[i]];
    }
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t k = i + 1; k < n; ++k)
      if (std::abs(a[k][i]) > std::abs(a[pivot][i])) pivot = k;
    if (std::abs(a[pivot][i]) < 1e-9 * static_cast<double>(rows.size())) return std::nullopt;
    std::swap(a[i], a[pivot]);
    for (size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = a[k][i] / a[i][i];
      for (size_t j = i; j <= n; ++j) a[k][j] -= factor * a[i][j];
    }
  }
  Row found{};
  for (size_t i = 0; i < n; ++i) found[columns[i]] = a[i][n] / a[i][i];
  return found;
}

double predicted(const Row& row, const Row& by) {
  double sum = 0;
  for (size_t i = 0; i < kMost; ++i) sum += row[i] * by[i];
  return sum;
}

struct Fitted {
  Row coefficients;
  FitError error;
};

// rows: the factor of each coefficient, divided by the measured time. There are few coefficients,
// so it tries every subset that may differ from 0.
std::optional<Fitted> fit(std::vector<Row> rows) {
  Row largest{};
  for (const Row& row : rows)
    for (size_t i = 0; i < kMost; ++i) largest[i] = std::max(largest[i], row[i]);
  for (Row& row : rows)
    for (size_t i = 0; i < kMost; ++i) row[i] = largest[i] > 0 ? row[i] / largest[i] : 0;
  std::optional<Fitted> best;
  double least = HUGE_VAL;
  for (unsigned used = 1; used < 1U << kMost; ++used) {
    const auto found = least_squares(rows, used);
    if (!found || std::any_of(found->begin(), found->end(), [](double v) { return v < 0; }))
      continue;
    double squares = 0;
    FitError error;
    for (const Row& row : rows) {
      const double off = std::abs(predicted(row, *found) - 1);
      squares += off * off;
      error.mean += off / static_cast<double>(rows.size());
      error.worst = std::max(error.worst, off);
    }
    if (squares >= least) continue;
    least = squares;
    best = Fitted{*found, error};
  }
  if (best)
    for (size_t i = 0; i < kMost; ++i)
      if (largest[i] > 0) best->coefficients[i] /= largest[i];
  return best;
}

Result<> check(double seconds) {
  if (std::isfinite(seconds) && seconds > 0) return {};
  return fail(Code::kInvalid, "a measured time of %g s: want more than 0", seconds);
}

}  // namespace

Result<CostFit> fit_cost(const ModelSpec& spec, std::span<const PrefillPoint> prefill,
                         std::span<const StepPoint> steps) {
  if (prefill.size() < 4 || steps.size() < 3)
    return fail(Code::kInvalid, "%zu prefill and %zu step measurements: want at least 4 and 3",
                prefill.size(), steps.size());
  std::vector<Row> prompts, batches;
  for (const PrefillPoint& at : prefill) {
    MC_TRY_(check(at.seconds));
    const auto n = static_cast<double>(at.n), p = static_cast<double>(at.p);
    prompts.push_back(
        {1 / at.seconds, (n - p) / at.seconds, (n * n - p * p) / at.seconds, p / at.seconds});
  }
  for (const StepPoint& at : steps) {
    MC_TRY_(check(at.seconds));
    batches.push_back({1 / at.seconds, (static_cast<double>(at.batch) - 1) / at.seconds,
                       static_cast<double>(at.context_tokens) / at.seconds, 0});
  }
  const auto by_prompts = fit(std::move(prompts)), by_steps = fit(std::move(batches));
  if (!by_prompts || !by_steps)
    return fail(Code::kInvalid,
                "the measured points are too similar to fit a cost model: measure other lengths "
                "and batches");
  CostFit result{spec.cost, by_prompts->error, by_steps->error};
  CostModel& c = result.cost;
  const Row& a = by_prompts->coefficients;
  c.c0 = a[0];
  c.c1 = a[1];
  c.c2 = a[2];
  const auto bytes = static_cast<double>(spec.kv_bytes_per_token());
  c.load_bytes_per_s = a[3] > bytes / kFreeLoad ? bytes / a[3] : kFreeLoad;
  c.t0 = by_steps->coefficients[0];
  c.t1 = by_steps->coefficients[1];
  c.t2 = by_steps->coefficients[2];
  return result;
}

}  // namespace mc::cost
