// A topology file of NCCL or RCCL (NCCL_TOPO_DUMP_FILE): <system> of <cpu> of nested <pci>, with
// <gpu> and <nic><net/></nic> inside.
//
// Such a file has no host bridges: two devices share a bridge when one <pci> encloses both. A net
// is an RDMA device unless it is of NCCL's socket transport (port 0 and no GPUDirect). States of
// ports are not recorded in it.
//
// Thread: any. Pure: a function of the tree. Errors: kInvalid with the element and the remedy.
#pragma once
#include <string>

#include "base/result.h"
#include "topo/formats/xml.h"
#include "topo/model/model.h"

namespace mc::topo {

Result<Machine> machine_from_nccl(const XmlElement& system, const std::string& where);

}  // namespace mc::topo
