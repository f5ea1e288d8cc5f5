// mc-replay: what a trace holds, traces made to measure, and traces played against a cluster. The
// work is in lib/trace and lib/load.
#include "cmd/mc-replay/verbs.h"

int main(int argc, char** argv) {
  mc::Program program("mc-replay", "analyze, synthesize and replay request traces");
  mc::replay::add_analyze(program);
  mc::replay::add_synth(program);
  mc::replay::add_run(program);
  return program.main(argc, argv);
}
