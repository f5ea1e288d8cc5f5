// Draws a machine: SVG for browsers and bug reports, DOT for graphviz.
//
// Boxes are NUMA nodes and PCI bridges; labels are devices. GPU labels name their tier 1; ports
// that are down are red. Names come from untrusted files and are escaped.
//
// Thread: any. Pure: functions of the Machine.
#pragma once
#include <string>

#include "topo/model/model.h"

namespace mc::topo {

std::string machine_svg(const Machine& machine);
std::string machine_dot(const Machine& machine);

}  // namespace mc::topo
