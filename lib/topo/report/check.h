// Finds what is wrong with a machine for moving KV caches, and the remedy.
//
// A finding is kWrong when transfers fail or are slower than the hardware allows. kNote reports
// what is worth knowing but may be intended. Only what the source holds is examined.
//
// Thread: any. Pure: functions of their arguments.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "topo/discover/host.h"
#include "topo/model/model.h"

namespace mc::topo {

enum class Severity { kWrong, kNote };

struct Finding {
  Severity severity = Severity::kWrong;
  std::string id;      // "port-down": stable, for scripts
  std::string where;   // "mlx5_0 port 1"
  std::string what;    // the fault, with the value seen
  std::string remedy;  // what to do
};

std::vector<Finding> examine(const Machine& machine, const Host& host);

// Mismatches between the ends of rails: pairs of RDMA devices' names.
std::vector<Finding> examine_pairs(const Machine& local, const Machine& remote,
                                   const std::vector<std::pair<std::string, std::string>>& rails);

std::string findings_text(const std::vector<Finding>& findings);

}  // namespace mc::topo
