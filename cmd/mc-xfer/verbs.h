// Registers the verbs of mc-xfer with the program.
#pragma once
#include "cmd/command.h"

namespace mc::xfer {

void add_serve(Program& program);
void add_copy(Program& program);
void add_bench(Program& program);
void add_kv(Program& program);
void add_paths(Program& program);
void add_p2p(Program& program);

}  // namespace mc::xfer
