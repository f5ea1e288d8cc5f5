// Multiples of a number: JsonText's part of them. Whole ones alone are written.
#include <cmath>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "model/grammar/json_text.h"

namespace mc::model::grammar {
namespace {

constexpr int kListedMax = 1024;  // multiples within bounds
constexpr uint32_t kMultipleMax = 128, kMultipleDigits = 12;

double number_of(const Decimal& d) {
  const double n = std::stod(d.whole + "." + d.part + "0");
  return d.negative ? -n : n;
}

// The first and the last whole n such that n / `parts` is within bounds.
struct Within {
  double first, last;
};
Within within(const Bounds& b, double parts) {
  const double low = number_of(*b.low) * parts, high = number_of(*b.high) * parts;
  Within w{std::ceil(low), std::floor(high)};
  if (b.above_low && w.first == low) ++w.first;
  if (b.below_high && w.last == high) --w.last;
  return w;
}

}  // namespace

Result<Rules::Node> JsonText::multiples_of(const Json& of, const Bounds& b) {
  if (!of.is_number() || !(of > 0)) return fail(Code::kInvalid, "is not a number above 0");
  const double step = of.get<double>();
  if (step <= 1 && std::abs(std::round(1 / step) * step - 1) < 1e-12) {
    if (b.low && b.high) {
      const Within whole_ones = within(b, 1), all = within(b, std::round(1 / step));
      if (whole_ones.first > whole_ones.last && all.first <= all.last)
        return fail(Code::kUnsupported,
                    "is not supported where no whole number is within the bounds: multiples are "
                    "written as whole numbers");
    }
    return integer(b);
  }
  const bool whole = std::floor(step) == step;
  if (whole && b.low && b.high) {
    double first = std::ceil(number_of(*b.low) / step),
           last = std::floor(number_of(*b.high) / step);
    if (b.above_low && first * step == number_of(*b.low)) ++first;
    if (b.below_high && last * step == number_of(*b.high)) --last;
    if (last - first < kListedMax) {
      std::vector<std::string> texts;
      for (double n = first; n <= last; ++n) texts.push_back(strf("%.0f", n * step + 0.0));
      return texts.empty() ? rules_.never() : rules_.texts(std::move(texts));
    }
  }
  const bool from_zero = b.low && b.low->zero() && !b.high;
  if (!whole || step > kMultipleMax || !(from_zero || (!b.low && !b.high)))
    return fail(Code::kUnsupported,
                "is not supported but for 1/n, for whole numbers up to %u without bounds or from 0 "
                "on, and for whole ones with bounds that %d multiples at most are within",
                kMultipleMax, kListedMax);
  return multiples(static_cast<uint32_t>(step), !from_zero, !b.above_low);
}

// A rule for each remainder that the digits so far can leave, and for how many more may come.
Rules::Node JsonText::multiples(uint32_t of, bool negative, bool zero) {
  std::vector<Rules::Node> after(of), next(of);  // by remainder: what may follow
  for (uint32_t r = 0; r < of; ++r) after[r] = r == 0 ? rules_.empty() : rules_.never();
  Rules::Node first = rules_.never();
  for (uint32_t n = 0; n < kMultipleDigits && !rules_.full(); ++n) {
    const auto digit_and_more = [&](uint32_t r, char from) {
      std::vector<Rules::Node> all;
      for (char d = from; d <= '9'; ++d)
        all.push_back(
            rules_.sequence({digit(d, d), after[(10 * r + static_cast<uint32_t>(d - '0')) % of]}));
      return rules_.either(all);
    };
    first = digit_and_more(0, '1');
    for (uint32_t r = 0; r < of; ++r) {
      const Rules::Node more = digit_and_more(r, '0');
      next[r] = rules_.named("digits", r == 0 ? rules_.maybe(more) : more);
    }
    after.swap(next);
  }
  std::vector<Rules::Node> all = {
      negative ? rules_.sequence({rules_.maybe(rules_.text("-")), first}) : first};
  if (zero) all.push_back(rules_.text("0"));
  return rules_.either(all);
}

}  // namespace mc::model::grammar
