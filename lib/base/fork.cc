#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace mc {
namespace {

std::atomic<uint32_t> forks_now{0};
[[maybe_unused]] const int counting =
    ::pthread_atfork(nullptr, nullptr, [] { forks_now.fetch_add(1); });

}  // namespace

uint32_t forks() { return forks_now.load(std::memory_order_relaxed); }

}  // namespace mc
