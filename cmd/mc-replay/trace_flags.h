// Parses the options that select a trace and its arrival times.
// `run`, `sim` and `plan` share them.
#pragma once
#include <string>

#include "cmd/command.h"
#include "cost/model_spec.h"
#include "trace/play/player.h"

namespace mc::replay {

struct TraceFlags {
  std::string trace, positional, arrival = "trace", window;
  double speed = 1, qps = 0;
  uint64_t limit = 0, seed = 0, block = trace::kBlockTokens;
  bool strict = false;

  void describe(OptionList& v);
  std::string path() const { return trace.empty() ? positional : trace; }
  // Errors: kInvalid for --arrival and --window.
  Result<trace::PlayOptions> play() const;
  // Warns of skipped lines; with a model, also of prompts longer than its context.
  // Errors: kInvalid without a file or with a bad --block, and those of trace::read_trace.
  Result<trace::Trace> read(const char* verb, const cost::ModelSpec* model = nullptr) const;
};

// Errors: kInvalid for a trace that is given both as the first word and as --trace.
Result<> check_one_trace(const std::string& positional, const std::string& trace);

// Reads a trace and warns of lines that were skipped or not in order.
Result<trace::Trace> read_and_warn(const std::string& path, const trace::ReadOptions& options);

}  // namespace mc::replay
