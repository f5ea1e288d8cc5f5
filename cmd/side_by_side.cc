#include "cmd/side_by_side.h"

#include <thread>
#include <vector>

#include "io/thread.h"

namespace mc {

Result<> side_by_side(size_t many, const InThread& run) {
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  std::string why;
  while (threads.size() < many && !stop) {
    const size_t i = threads.size();
    if (auto made = io::start_thread([&run, &stop, i] { run(i, stop); })) {
      threads.push_back(std::move(*made));
    } else {
      why = made.error().what;
      stop = true;
    }
  }
  const size_t begun = threads.size();
  for (std::thread& t : threads) t.join();
  if (!stop) return {};
  return fail(Code::kNoSpace, "thread %zu of %zu does not begin: %s; ask for fewer --threads",
              begun + 1, many, why.c_str());
}

}  // namespace mc
