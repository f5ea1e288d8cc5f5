// Measures how fast an engine runs on this machine, and fits the cost model.
// It measures prompts of several lengths, with and without a reused prefix, and decode steps of
// several batch sizes, as a worker runs them. Schedulers and the simulator predict with the result.
//
// Errors: kUnsupported for an engine whose time is modelled; kInvalid for too few blocks.
// Thread: the caller's; the engine uses its own.
// Source: Mooncake paper section 3.1 and its figures of prefill and decode times.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/time.h"
#include "cost/cost_fit.h"
#include "serve/engine/engine.h"

namespace mc::serve {

struct CalibrateOptions {
  uint32_t blocks = 0;           // that it may use, as a worker's pool
  uint64_t tokens = 2048;        // the longest prompt
  uint64_t chunk_tokens = 1024;  // computed at a time
  uint32_t repeats = 5;          // each figure is the median of these
};

struct Calibration {
  std::vector<cost::PrefillPoint> prefill;
  std::vector<cost::StepPoint> steps;
  cost::CostFit fit;
};

// `progress`: called with one line for each measurement.
Result<Calibration> calibrate(const Engine& engine, const Clock& clock,
                              const CalibrateOptions& options,
                              const std::function<void(const std::string&)>& progress);

}  // namespace mc::serve
