// Writes distributions as profiles have them: their values at a few quantile levels.
//
// Thread: values; any thread. Pure.
#pragma once
#include <vector>

#include "base/json_fwd.h"

namespace mc::trace {

const std::vector<double>& knot_levels();  // in percent
// The values at these levels, in whole units; `otherwise` at each level when `values` is empty.
Json knots(const std::vector<double>& values, double otherwise, double unit);

}  // namespace mc::trace
