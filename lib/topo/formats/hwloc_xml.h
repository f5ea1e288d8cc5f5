// A machine that lstopo exported as XML, formats 1 and 2.
//
// Read here and not by libhwloc: its XML reader crashes on contradictory objects (a file of a
// stranger must not do that), and reads only hwloc's own exact wording unless a plugin is there.
//
// The NUMA node of a device is the one node with CPUs among those of the object it is attached to;
// when there are several, it is unknown. A CPU belongs to the node that covers the fewest CPUs, the
// lowest id among equals: memory-only nodes (HBM, NVDIMM, the memory of a GPU) are given the CPUs
// near them too. States of ports that the file leaves out are kNotRecorded.
//
// Thread: any. Pure: a function of the tree. Errors: kInvalid with the object; kUnsupported for a
// later format.
#pragma once
#include <string>

#include "base/result.h"
#include "topo/formats/xml.h"
#include "topo/model/model.h"

namespace mc::topo {

Result<Machine> machine_from_hwloc(const XmlElement& topology, const std::string& where);

}  // namespace mc::topo
