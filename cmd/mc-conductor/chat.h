// The verb `chat`: a conversation with a served model, its answers streamed as they come.
//
// Thread: main's.
#pragma once
#include "cmd/command.h"

namespace mc {

void add_chat(Program& program);

}  // namespace mc
