#include "store/metadata/rebuild.h"

#include <algorithm>

#include "base/result.h"

namespace mc::store {

void Rebuild::expect(uint64_t nodes) { expected_ = std::max(expected_, nodes); }

void Rebuild::reported(const NodeId& node) {
  if (reported_.size() < expected_) reported_.insert(node);
}

Time Rebuild::end() const {
  if (grace_ == Duration::zero()) return started_;
  if (expected_ == 0) return started_ + grace_;
  return reported_.size() >= expected_ ? started_ : started_ + std::max(grace_, limit_);
}

std::string Rebuild::why(Time now) const {
  if (over(now)) return {};
  const auto ms = static_cast<long long>(std::chrono::ceil<std::chrono::milliseconds>(end() - now) /
                                         std::chrono::milliseconds(1));
  if (expected_ == 0)
    return strf("rebuilding: nodes may not have reported yet: retry within %lld ms", ms);
  return strf("rebuilding: %llu of %llu nodes have not reported yet: retry within %lld ms",
              static_cast<unsigned long long>(expected_ - reported_.size()),
              static_cast<unsigned long long>(expected_), ms);
}

}  // namespace mc::store
