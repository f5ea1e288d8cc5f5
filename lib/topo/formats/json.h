// Converts a machine, its tiers and its topology matrix to JSON. It also reads a machine back; a
// running node describes itself that way.
//
// The matrix has two forms. The reference system's, read by Mooncake's transfer engine as a custom
// topology: {"cpu:0": [[preferred], [available]], "cuda:0": ...}, tier 1 being preferred and tiers
// 2 and 3 available. Ours keeps the three tiers and says where each NIC is.
//
// Errors: kInvalid with the member. Thread: any; functions of their arguments.
#pragma once
#include <string>

#include "base/json_fwd.h"
#include "base/result.h"
#include "topo/model/model.h"
#include "topo/model/tiers.h"

namespace mc::topo {

Json machine_json(const Machine& machine);
// `where` names the source in errors. Members that are absent are empty or unknown.
Result<Machine> machine_from_json(const Json& json, const std::string& where);

Json tiers_json(const Machine& machine, const TierTable& table);
Json matrix_json(const Machine& machine, const TierTable& table);
Json reference_matrix_json(const TierTable& table);

}  // namespace mc::topo
