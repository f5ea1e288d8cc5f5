// Looks up the name of a peer, before a command waits for it.
//
// Thread: any.
#pragma once
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace mc::xfer {

// Errors: kUnavailable when the system's resolver says that the host of "host:port" has no address.
// Where it says nothing of that within `most`, or something else, that is no error here.
Result<> check_peer_name(const std::string& control, Duration most);

}  // namespace mc::xfer
