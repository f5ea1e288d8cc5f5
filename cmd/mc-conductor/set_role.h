// The verb `set-role`: makes a worker another one, once it has finished what it has.
//
// Thread: main's.
#pragma once
#include "cmd/command.h"

namespace mc {

void add_set_role(Program& program);

}  // namespace mc
