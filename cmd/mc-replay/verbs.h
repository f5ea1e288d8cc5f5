// Declares the verbs of mc-replay. Each function registers one verb.
#pragma once
#include "cmd/command.h"

namespace mc::replay {

void add_analyze(Program& program);
void add_synth(Program& program);
void add_run(Program& program);
void add_sim(Program& program);
void add_compare(Program& program);
void add_calibrate(Program& program);
void add_plan(Program& program);
void add_paper(Program& program);

}  // namespace mc::replay
