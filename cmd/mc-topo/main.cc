// mc-topo: shows what a machine is made of, and which NIC serves which memory. The work is in
// lib/topo.
#include "cmd/mc-topo/verbs.h"
#include "topo/discover/nvml.h"

int main(int argc, char** argv) {
  mc::Program program("mc-topo", "NUMA nodes, GPUs and NICs of a machine, and their tiers");
  program.version_line([] { return "NVML: " + mc::topo::nvml_summary(mc::topo::ask_nvml()); });
  mc::topo::add_show(program);
  mc::topo::add_tiers(program);
  mc::topo::add_matrix(program);
  mc::topo::add_pair(program);
  mc::topo::add_probe(program);
  mc::topo::add_check(program);
  mc::topo::add_diff(program);
  mc::topo::add_capture(program);
  return program.main(argc, argv);
}
