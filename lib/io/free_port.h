// Finds a free port for a listener that may have any ("host:0").
//
// The kernel would choose from the range of outgoing connections. While the listener's process is
// down, another program's connection can then get its port. So can a peer that dials it again and
// again: that peer connects to itself. The process could not restart at the address that its peers
// know. So ports below that range are tried first.
//
// Thread: any.
#pragma once
#include <cstdint>
#include <functional>

namespace mc {
class Random;
}

namespace mc::io {

// Calls listen(port) for some 30 ports at most below those of outgoing connections, until it
// returns true. Then, or if there is no such port, it calls listen(0), the kernel's choice.
// Returns: what the last call returned.
bool listen_on_free_port(Random& random, const std::function<bool(uint16_t)>& listen);

// The same for a given start of the range: the first port that an outgoing connection may have.
bool listen_on_free_port(Random& random, uint32_t first_outgoing,
                         const std::function<bool(uint16_t)>& listen);

}  // namespace mc::io
