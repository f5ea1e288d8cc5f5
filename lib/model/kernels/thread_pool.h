// Runs the parts of one piece of work on a few threads. Any thread may run any part. So parts must
// not depend on each other, nor results on the thread.
//
//   threads.run(columns, [&](size_t column) { ... });
//
// Thread: run() from any; callers take turns. The destructor joins idle threads only.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace mc::model {

class ThreadPool {
 public:
  explicit ThreadPool(unsigned count);  // the caller's included; 0: one for each CPU
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
