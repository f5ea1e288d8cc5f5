// Runs independent work items on several threads.
// Any thread may run any item, so each item must write to its own place: then the result is the
// same for any number of threads.
//
// Thread: the caller's thread works too, and waits for the others.
#pragma once
#include <cstddef>
#include <functional>

namespace mc::sim {

// Calls work(0) to work(n - 1), each once, on up to `threads` threads; 0: one for each CPU. Neither
// throws.
void in_parallel(size_t n, size_t threads, const std::function<void(size_t)>& work);

}  // namespace mc::sim
