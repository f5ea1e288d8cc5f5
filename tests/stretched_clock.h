// A clock that goes at a tenth of the speed: what the product does within a second of it has ten,
// where the CPU goes to others.
#pragma once
#include "base/time.h"

namespace mc {

class StretchedClock final : public Clock {
 public:
  Time now() const override { return Time(steady_.now().time_since_epoch() / 10); }

 private:
  SteadyClock steady_;
};

}  // namespace mc
