// mc-replay analyzes and synthesizes traces, and replays them against a live or simulated cluster.
// The work is in lib/trace, lib/load and lib/sim.
#include "cmd/mc-replay/verbs.h"

int main(int argc, char** argv) {
  mc::Program program("mc-replay", "analyze, synthesize, replay and simulate request traces");
  mc::replay::add_analyze(program);
  mc::replay::add_synth(program);
  mc::replay::add_run(program);
  mc::replay::add_sim(program);
  mc::replay::add_compare(program);
  mc::replay::add_calibrate(program);
  mc::replay::add_plan(program);
  mc::replay::add_paper(program);
  return program.main(argc, argv);
}
