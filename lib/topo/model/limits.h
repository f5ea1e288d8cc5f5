// Limits on a machine read from a file. They bound the tier tables, which grow with NICs × (GPUs +
// nodes).
//
// Thread: any. Pure.
#pragma once
#include <string>

#include "base/result.h"
#include "topo/model/model.h"

namespace mc::topo {

inline constexpr size_t kMachineNodesMax = 1024;  // as Linux
inline constexpr size_t kMachineGpusMax = 1024;
inline constexpr size_t kMachineRdmaMax = 4096;  // with virtual functions

// kInvalid, with `where` and the number.
inline Result<> check_limits(const Machine& machine, const std::string& where) {
  const auto check = [&](size_t count, size_t most, const char* what) -> Result<> {
    if (count <= most) return {};
    return fail(Code::kInvalid, "%s: %zu %s: a machine has at most %zu", where.c_str(), count, what,
                most);
  };
  MC_TRY_(check(machine.nodes.size(), kMachineNodesMax, "NUMA nodes"));
  MC_TRY_(check(machine.gpus.size(), kMachineGpusMax, "GPUs"));
  return check(machine.rdma.size(), kMachineRdmaMax, "RDMA devices");
}

}  // namespace mc::topo
