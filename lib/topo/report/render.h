// Prints a machine and its tiers as text for people. For programs: topo/formats/json.h.
//
// Thread: any; functions of their arguments.
#pragma once
#include <string>

#include "topo/model/model.h"
#include "topo/model/tiers.h"

namespace mc::topo {

// A tree: NUMA nodes, below them host bridges, bridges and devices. Bridges that lead to nothing of
// interest are not shown, chains of bridges share a line.
std::string machine_text(const Machine& machine);

// Each row of tiers with the reason for it.
std::string tiers_text(const Machine& machine, const TierTable& table);

// Locations by NICs, each cell a tier.
std::string matrix_text(const Machine& machine, const TierTable& table);

}  // namespace mc::topo
