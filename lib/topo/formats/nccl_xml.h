// Reads a topology file of NCCL or RCCL (NCCL_TOPO_DUMP_FILE). It is <system> of <cpu> of nested
// <pci>, with <gpu> and <nic><net/></nic> inside.
//
// Such a file has no host bridges: two devices share a bridge when one <pci> encloses both. A net
// is an RDMA device unless it is of NCCL's socket transport (port 0 and no GPUDirect). The file
// does not record states of ports.
//
// Errors: kInvalid with the element and the remedy. Thread: any. Pure: a function of the tree.
#pragma once
#include <string>

#include "base/result.h"
#include "topo/formats/xml.h"
#include "topo/model/model.h"

namespace mc::topo {

Result<Machine> machine_from_nccl(const XmlElement& system, const std::string& where);

}  // namespace mc::topo
