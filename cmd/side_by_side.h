// Runs the same in several threads: for verbs that measure.
//
// Thread: the caller's, which waits.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>

#include "base/result.h"

namespace mc {

// Calls `run` with 0 to many - 1, each in a thread of its own, and waits for all. `stop` becomes
// true when what they do is for nothing. Errors: kNoSpace: a thread could not begin.
using InThread = std::function<void(size_t i, const std::atomic<bool>& stop)>;
Result<> side_by_side(size_t many, const InThread& run);

}  // namespace mc
