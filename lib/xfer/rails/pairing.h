// Pure: builds the rail map, which pairs local with remote NICs. Pairs are one to one where
// possible, by the strongest hint available: probed latencies (a maximum-weight bipartite
// matching), the same subnet, the same name, NUMA order, GPU affinity; else round-robin inside the
// tier. Every other reachable pair is a rail too, for retries.
//
// Thread: values.
// Source: TENT paper 3.3.1 (three pairing strategies).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"

namespace mc::xfer {

struct Nic {
  std::string name;          // "eth0", "mlx5_2"
  std::string address;       // IPv4 or IPv6 text, or a GID
  uint32_t prefix_bits = 0;  // of the address's subnet; 0: unknown
  int numa = -1;
  std::string gpu;          // nearest GPU, "" when none
  uint64_t speed_mbit = 0;  // shown to people, never scored
};

struct RailPair {
  size_t local = 0, remote = 0;
  bool mapped = false;
  const char* why = "";  // "probed", "subnet", "name", "numa", "gpu", "round-robin"; "" unmapped
};

// `latency(l, r)`, if given for all pairs (row-major, local x remote; nullopt: unreachable),
// decides.
struct Probed {
  std::vector<std::optional<Duration>> round_trips;
};
std::vector<RailPair> pair_rails(const std::vector<Nic>& local, const std::vector<Nic>& remote,
                                 const Probed* probed = nullptr);

// The assignment of rows to columns with the least total cost (n x m, row-major; infinity: cannot).
// Element i: the column of row i, or -1.
std::vector<int> match_least_cost(const std::vector<double>& cost, size_t rows, size_t columns);

bool same_subnet(const Nic& a, const Nic& b);

}  // namespace mc::xfer
