#include "rpc/access/held_growth.h"

#include <utility>

namespace mc::rpc {
namespace {
constexpr uint64_t kTooMuch = 8;  // times
}  // namespace

void HeldGrowth::on_doubt(std::function<bool()> ask) {
  Lock lock(mutex_);
  ask_ = std::move(ask);
}

bool HeldGrowth::grew(Since& since, uint64_t memory, uint64_t most) {
  if (memory <= since.memory + most) return false;
  if (since.again || memory > since.memory + kTooMuch * most) return true;
  if (since.answer == 0) {
    Lock lock(mutex_);
    if (!ask_) return true;
    if (ask_()) since.answer = seen_ + 1;
  } else if (seen_ >= since.answer) {
    since = {.memory = memory, .answer = since.answer, .again = true};
  }
  return false;
}

}  // namespace mc::rpc
