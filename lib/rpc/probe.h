// Finds out which of several servers listens. It tries all at once, so that dead ones cost no time.
//
// Thread: any; blocks up to `budget`.
#pragma once
#include <string>
#include <vector>

#include "base/time.h"

namespace mc::rpc {

// Returns: the first address, in order, that accepts a connection; SIZE_MAX when none does in time.
// A server that accepts connections may still not answer calls.
size_t first_listening(const std::vector<std::string>& addresses, Duration budget,
                       const Clock& clock);

}  // namespace mc::rpc
