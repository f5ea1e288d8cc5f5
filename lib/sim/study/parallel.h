// Independent pieces of work on several threads. Which thread does which is left to chance, so each
// piece must write to a place of its own: then the outcome is the same whatever the number of
// threads.
//
// Thread: the caller's is one of them, and waits for the others.
#pragma once
#include <cstddef>
#include <functional>

namespace mc::sim {

// Calls work(0) to work(n - 1), each once, on up to `threads` threads; 0: as many as the machine
// has. Neither throws.
void in_parallel(size_t n, size_t threads, const std::function<void(size_t)>& work);

}  // namespace mc::sim
