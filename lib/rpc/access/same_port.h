// Several listening sockets on one address. One of them gets all new connections. libzmq ends the
// connections of a socket that no longer listens, and one that listens has one key for good.
//
// Thread: any.
// Source: socket(7), SO_REUSEPORT and SO_ATTACH_REUSEPORT_CBPF.
#pragma once
#include <cstddef>

#include "base/result.h"
#include "io/fd.h"

namespace mc::rpc {

// One more listening socket on the address of `listener`. Errors: kUnavailable when the kernel lets
// none be there.
Result<io::Fd> listen_on_same_port(int listener, int backlog);

// From now on new connections go to socket number `at` of those on that address, in the order in
// which they began to listen. Where the kernel has no such socket, they go to any.
Result<> take_connections_of_port(int listener, size_t at);

}  // namespace mc::rpc
