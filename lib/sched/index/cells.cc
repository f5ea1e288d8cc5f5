#include "sched/index/cells.h"

namespace mc::sched {
namespace {
constexpr int kBack = 64;  // cells looked at to find where a free run begins
}  // namespace

IndexCells::At IndexCells::take(uint64_t tag, At near) {
  At at = near + 1;  // 0 after kNone
  if (near == kNone || !is_free(at)) {
    at = free_;
    if (at == kNone) {
      if (size_ % kChunk == 0) chunks_.emplace_back().reserve(kChunk);
      chunks_.back().push_back({.tag = tag, .holders = {}, .count = 0});
      return size_++;
    }
    for (int i = 0; i < kBack && at > 0 && is_free(at - 1); ++i) --at;
  }
  unlink(at);
  (*this)[at] = {.tag = tag, .holders = {}, .count = 0};
  return at;
}

void IndexCells::free(At at) {
  (*this)[at] = {.tag = links(kNone, free_), .holders = {}, .count = 0};
  if (free_ != kNone) (*this)[free_].tag = links(at, after(free_));
  free_ = at;
}

void IndexCells::unlink(At at) {
  const At last = before(at), next = after(at);
  if (next != kNone) (*this)[next].tag = links(last, after(next));
  if (last != kNone)
    (*this)[last].tag = links(before(last), next);
  else
    free_ = next;
}

}  // namespace mc::sched
