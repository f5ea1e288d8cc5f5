#include "xfer/transports/shm/biased_lock.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "base/time.h"

namespace mc {
namespace {

struct Pair {  // the same twice, whenever its lock is held
  BiasedLock mutex;
  uint64_t a MC_GUARDED_BY(mutex) = 0, b MC_GUARDED_BY(mutex) = 0;
  uint64_t seen MC_GUARDED_BY(mutex) = 0;  // by others, of all that they looked for
};

TEST_SUITE_BEGIN("base/owner_lock");

TEST_CASE("an owner lock keeps its owner and all others apart") {
  constexpr uint64_t kLooks = 300;
  Pair pair;
  std::atomic<uint64_t> torn{0};
  std::atomic<int> looking{2};
  std::vector<std::thread> others;
  for (int t = 0; t < 2; ++t)
    others.emplace_back([&] {
      for (uint64_t i = 0; i < kLooks; ++i) {
        pair.mutex.lock_slow();
        if (pair.a != pair.b) ++torn;
        ++pair.a, ++pair.b, ++pair.seen;
        pair.mutex.unlock_slow();
      }
      --looking;
    });
  uint64_t mine = 0;
  while (looking > 0 || mine < 1000) {
    if (!pair.mutex.try_lock()) continue;
    if (pair.a != pair.b) ++torn;
    ++pair.a;
    std::atomic_signal_fence(std::memory_order_seq_cst);  // two stores, each of them made
    ++pair.b;
    ++mine;
    pair.mutex.unlock();
  }
  for (auto& t : others) t.join();
  CHECK(torn == 0);
  pair.mutex.lock_slow();
  CHECK(pair.seen == 2 * kLooks);
  CHECK(pair.a == mine + 2 * kLooks);
  CHECK(pair.b == pair.a);
  pair.mutex.unlock_slow();
}

TEST_CASE("the time that costs nothing lags some milliseconds behind, on the same line") {
  const SteadyClock clock;
  const Time before = clock.now();
  const Time about = clock.coarse_now();
  CHECK(about <= clock.now());
  CHECK(about > before - std::chrono::seconds(1));  // some ticks of the slowest kernel
  ManualClock manual;
  manual.advance(std::chrono::seconds(5));
  CHECK(manual.coarse_now() == manual.now());
}

TEST_SUITE_END();

}  // namespace
}  // namespace mc
