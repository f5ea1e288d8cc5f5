// Reads a machine that lstopo exported as XML, formats 1 and 2.
//
// It does not use libhwloc's reader. That one crashes on contradictory objects, which an untrusted
// file may hold, and accepts only hwloc's exact wording unless a plugin is installed.
//
// The NUMA node of a device is the one node with CPUs among those of the object it is attached to;
// with several, it is unknown. A CPU belongs to the node that covers the fewest CPUs, the lowest id
// among equals: memory-only nodes (HBM, NVDIMM, the memory of a GPU) are given the CPUs near them
// too. States of ports that the file leaves out are kNotRecorded.
//
// Errors: kInvalid with the object; kUnsupported for a later format. Thread: any. Pure: a function
// of the tree.
#pragma once
#include <string>

#include "base/result.h"
#include "topo/formats/xml.h"
#include "topo/model/model.h"

namespace mc::topo {

Result<Machine> machine_from_hwloc(const XmlElement& topology, const std::string& where);

}  // namespace mc::topo
