// A few threads that share the parts of one piece of work. Which thread does which part is left to
// chance, so parts must not depend on each other; what they compute must not depend on it either.
//
//   threads.run(columns, [&](size_t column) { ... });
//
// Thread: run() from any; callers take turns. The destructor waits for nothing but idle threads.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace mc::model {

class ThreadPool {
 public:
  explicit ThreadPool(unsigned count);  // with the caller's; 0: one for each CPU
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void run(size_t parts, const std::function<void(size_t)>& part);
  unsigned count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mc::model
