// A machine and its tiers for people (text) and for programs (JSON).
//
// Thread: any; functions of their arguments.
#pragma once
#include <string>

#include "base/json_fwd.h"
#include "topo/model.h"
#include "topo/tiers.h"

namespace mc::topo {

// A tree: NUMA nodes, below them host bridges, bridges and devices. Bridges that lead to nothing of
// interest are not shown, chains of bridges share a line.
std::string machine_text(const Machine& machine);
Json machine_json(const Machine& machine);

// Each row of tiers with the reason for it.
std::string tiers_text(const Machine& machine, const TierTable& table);
Json tiers_json(const Machine& machine, const TierTable& table);

}  // namespace mc::topo
