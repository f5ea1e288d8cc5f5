// How long an engine takes on this machine: prompts of several lengths, with and without a reused
// beginning, and decode steps of several batches, measured as a worker runs them and fitted to the
// cost model that schedulers and the simulator predict with.
//
// Thread: the caller's; the engine uses its own. Errors: kUnsupported for an engine whose time is
// modelled; kInvalid for too few blocks to measure with.
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
  uint32_t blocks = 0;           // that may be used, as a worker's pool
  uint64_t tokens = 2048;        // the longest prompt
  uint64_t chunk_tokens = 1024;  // computed at a time
  uint32_t repeats = 5;          // the median of so many counts
};

struct Calibration {
  std::vector<cost::PrefillPoint> prefill;
  std::vector<cost::StepPoint> steps;
  cost::CostFit fit;
};

// progress: what was measured, a line each.
Result<Calibration> calibrate(const Engine& engine, const Clock& clock,
                              const CalibrateOptions& options,
                              const std::function<void(const std::string&)>& progress);

}  // namespace mc::serve
