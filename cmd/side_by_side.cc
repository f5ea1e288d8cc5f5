#include "cmd/side_by_side.h"

#include <system_error>
#include <thread>
#include <vector>

namespace mc {

Result<> side_by_side(size_t many, const InThread& run) {
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  std::string why;
  while (threads.size() < many && !stop) {
    const size_t i = threads.size();
    try {
      threads.emplace_back([&run, &stop, i] { run(i, stop); });
    } catch (const std::system_error& e) {
      why = e.code().message();
      stop = true;
    }
  }
  const size_t begun = threads.size();
  for (std::thread& t : threads) t.join();
  if (!stop) return {};
  return fail(Code::kNoSpace,
              "thread %zu of %zu does not begin (%s): a limit on processes (ulimit -u, pids.max of "
              "the cgroup) or on memory; ask for fewer --threads",
              begun + 1, many, why.c_str());
}

}  // namespace mc
