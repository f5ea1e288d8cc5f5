// mc-topo: what this machine is made of, and which NIC serves which memory. The work is in
// lib/topo.
#include "cmd/mc-topo/verbs.h"

int main(int argc, char** argv) {
  mc::Program program("mc-topo", "NUMA nodes, GPUs and NICs of a machine, and their tiers");
  mc::topo::add_show(program);
  mc::topo::add_tiers(program);
  return program.main(argc, argv);
}
