#pragma once
// Which changes of state a reliable connected queue pair allows, and which attributes each one
// requires or accepts.
//
// Pure: a table. Thread: any.
// Source: InfiniBand Architecture Specification, volume 1, modify queue pair (table of attributes).

#include <infiniband/verbs.h>

namespace mc::emu {

struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};

// nullptr: not allowed. RESET and ERR are reached from everywhere.
const Transition* transition(ibv_qp_state from, ibv_qp_state to);
// Whether `mask` has all that is required and nothing that is not accepted.
bool mask_fits(const Transition& transition, int mask);

}  // namespace mc::emu
