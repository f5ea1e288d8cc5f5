#include "sim/study/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace mc::sim {

void in_parallel(size_t n, size_t threads, const std::function<void(size_t)>& work) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = 0; (i = next.fetch_add(1)) < n;) work(i);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(threads, n); ++i) others.emplace_back(take);
  take();
  for (std::thread& t : others) t.join();
}

}  // namespace mc::sim
