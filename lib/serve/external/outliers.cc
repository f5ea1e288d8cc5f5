#include "serve/external/outliers.h"

#include <algorithm>
#include <bit>

namespace mc::serve {
namespace {
constexpr int kWindow = 10, kFailuresMax = 4;
constexpr Duration kFirst = std::chrono::seconds(1), kLongest = std::chrono::seconds(30);
}  // namespace

void OutlierWatch::answered(bool well, Time now) {
  if (ejected(now)) return;
  last_ = (last_ << 1 | (well ? 0u : 1u)) & ((1u << kWindow) - 1);
  seen_ = std::min(seen_ + 1, kWindow);
  good_in_a_row_ = well ? good_in_a_row_ + 1 : 0;
  if (good_in_a_row_ >= kWindow) next_ = kFirst;
}

int OutlierWatch::failed() const { return std::popcount(last_); }
bool OutlierWatch::failing() const { return failed() > kFailuresMax; }

void OutlierWatch::eject(Time now) {
  next_ = std::max(next_, kFirst);
  until_ = now + next_;
  next_ = std::min(2 * next_, kLongest);
  last_ = 0;
  seen_ = good_in_a_row_ = 0;
  ++ejections_;
}

}  // namespace mc::serve
