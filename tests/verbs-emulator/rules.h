#pragma once
// Fault rules: which work request meets which fate. A request is judged once, when it is first
// executed; the first rule that fits wins, so by count the outcome is deterministic.
//
// Thread: any thread of any process; the rules are guarded by their lock in the fabric.

#include "fabric.h"

namespace mc::emu {

struct Fate {
  bool struck = false;
  Action action = Action::kError;
  uint64_t argument = 0;
};

struct Victim {
  uint32_t nic;
  uint32_t opcode;
  uint32_t qp_number;
  uint64_t bytes;
};

Fate judge(Layout& layout, const Victim& victim);

}  // namespace mc::emu
