// Collects the slices of a submit whose caller waits for them, so that their transport gets those
// of one peer together.
//
// Thread: one call.
#pragma once
#include <span>
#include <utility>
#include <vector>

#include "xfer/core/transport.h"

namespace mc::xfer {

class AwaitedSlices {
 public:
  // The calling thread may take so long to move them.
  static constexpr Duration kTime = std::chrono::milliseconds(5);
  explicit AwaitedSlices(Time until) : until_(until) {}

  void add(Transport& to, SlicePtr slice) {
    if (!slices_.empty() &&
        (&to != to_ || slices_.front()->peer != slice->peer || slices_.front()->op != slice->op))
      submit();
    to_ = &to;
    slices_.push_back(std::move(slice));
  }
  // Submits what is left.
  void submit() {
    if (!slices_.empty()) to_->submit_awaited(slices_, until_);
    slices_.clear();
  }

 private:
  const Time until_;
  Transport* to_ = nullptr;
  std::vector<SlicePtr> slices_;  // of one peer and op, all for `to_`
};

}  // namespace mc::xfer
