// Collects the slices of a submit, so that their transport gets those of one peer together. If the
// caller waits for them, it gets all of them at once, and may move them on the caller's thread.
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
  static constexpr size_t kTogether = 32;  // where it moves none: at a time
  // `until`: when the calling thread stops to move them. Time{}: it moves none.
  explicit AwaitedSlices(Time until) : until_(until) {}

  void add(Transport& to, SlicePtr slice) {
    if (!slices_.empty() &&
        (&to != to_ || slices_.front()->peer != slice->peer || slices_.front()->op != slice->op))
      submit();
    to_ = &to;
    slices_.push_back(std::move(slice));
    if (until_ == Time{} && slices_.size() == kTogether) submit();
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
