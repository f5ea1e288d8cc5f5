#include "trace/fit/quantiles.h"

#include <cmath>

#include "base/json.h"
#include "trace/records/distribution.h"

namespace mc::trace {

const std::vector<double>& knot_levels() {
  static const std::vector<double> levels = {0,  0.5, 1,    2,  3,  5,  7.5, 10, 15,   20,   25,
                                             30, 35,  40,   45, 50, 55, 60,  65, 70,   75,   80,
                                             85, 90,  92.5, 95, 96, 97, 98,  99, 99.5, 99.8, 100};
  return levels;
}

Json knots(const std::vector<double>& values, double otherwise, double unit) {
  const Distribution d(values);
  Json out = Json::array();
  for (const double level : knot_levels())
    out.push_back(d.empty() ? otherwise : std::round(d.percentile(level) / unit) * unit);
  return out;
}

}  // namespace mc::trace
