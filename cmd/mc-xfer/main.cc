// mc-xfer: the transfer engine as a tool of its own. The work is in lib/xfer.
#include "cmd/mc-xfer/verbs.h"

int main(int argc, char** argv) {
  mc::Program program("mc-xfer", "serve memory, copy to and from it, measure the way there");
  mc::xfer::add_serve(program);
  mc::xfer::add_copy(program);
  mc::xfer::add_bench(program);
  mc::xfer::add_kv(program);
  mc::xfer::add_paths(program);
  mc::xfer::add_p2p(program);
  return program.main(argc, argv);
}
