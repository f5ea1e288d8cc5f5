// Which of several servers there is: all are tried at once, so that one that is gone costs no time.
//
// Thread: any; blocks up to `budget`.
#pragma once
#include <string>
#include <vector>

#include "base/time.h"

namespace mc::rpc {

// The first, in order, of those that take a connection; SIZE_MAX when none does in time. One that
// takes connections may still not answer.
size_t first_listening(const std::vector<std::string>& addresses, Duration budget,
                       const Clock& clock);

}  // namespace mc::rpc
