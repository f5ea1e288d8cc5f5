#include "io/free_port.h"

#include <charconv>

#include "base/random.h"
#include "io/file.h"

namespace mc::io {
namespace {
constexpr uint32_t kLowest = 16'384;  // services have their usual ports below
constexpr int kTries = 32;

uint32_t first_outgoing_port() {
  const auto range = read_file("/proc/sys/net/ipv4/ip_local_port_range", 64);
  uint32_t first = 0;
  if (range) std::from_chars(range->data(), range->data() + range->size(), first);
  return first;
}
}  // namespace

bool listen_on_free_port(Random& random, uint32_t first_outgoing,
                         const std::function<bool(uint16_t)>& listen) {
  for (int i = 0; i < kTries && first_outgoing > kLowest; ++i) {
    const auto port = static_cast<uint16_t>(kLowest + random.below(first_outgoing - kLowest));
    if (listen(port)) return true;
  }
  return listen(0);
}
bool listen_on_free_port(Random& random, const std::function<bool(uint16_t)>& listen) {
  return listen_on_free_port(random, first_outgoing_port(), listen);
}

}  // namespace mc::io
