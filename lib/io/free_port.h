// A port for a listener that may have any ("host:0").
//
// The kernel would give it one of those that it also gives outgoing connections. While such a
// listener's process is down, a stranger's connection can get its port, and so can a peer that
// dials it again and again (it is then connected with itself): the process cannot come back to the
// address by which its peers know it. So ports below that range are tried first.
//
// Thread: any.
#pragma once
#include <cstdint>
#include <functional>

namespace mc {
class Random;
}

namespace mc::io {

// Calls listen(port) for ports below those of outgoing connections, some 30 at most, until it
// returns true; at last, or where there is no such port, for 0, the kernel's choice. Returns what
// the last call returned.
bool listen_on_free_port(Random& random, const std::function<bool(uint16_t)>& listen);

// The same with the range's start given: the first port that an outgoing connection may have.
bool listen_on_free_port(Random& random, uint32_t first_outgoing,
                         const std::function<bool(uint16_t)>& listen);

}  // namespace mc::io
