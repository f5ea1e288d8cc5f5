// Starts a thread, or says why there is none: the limits on processes of a user (`ulimit -u`) or of
// a control group (pids.max) count threads. For threads that begin after the start of a process,
// when an exception would end it.
//
// Errors: kUnavailable. Thread: any.
#pragma once
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace mc::io {

template <class Work>
Result<std::thread> start_thread(Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& e) {
    return fail(
        Code::kUnavailable,
        "no further thread: %s; see the limits on processes (ulimit -u, pids.max) and memory",
        e.code().message().c_str());
  }
}

}  // namespace mc::io
