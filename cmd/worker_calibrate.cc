// mc-prefill --calibrate: measures the engine on this machine.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/json.h"
#include "base/log.h"
#include "cmd/worker.h"
#include "io/file.h"
#include "serve/engine/calibrate.h"

namespace mc {
namespace {

// Fails before an hour of measuring, not after, if the file cannot be written.
Result<> check_writable(const std::string& file) {
  if (std::filesystem::is_directory(file))
    return fail(Code::kInvalid, "--calibrate %s: a directory: want a file", file.c_str());
  const std::string trial = file + ".trial";
  if (const auto written = io::write_file_atomically(trial, ""); !written)
    return fail(Code::kInvalid, "--calibrate %s: cannot be written: %s", file.c_str(),
                written.error().what.c_str());
  (void)::unlink(trial.c_str());
  return {};
}

}  // namespace

Result<int> calibrate_engine(const WorkerProgram& options) {
  const serve::WorkerOptions& w = options.worker;
  MC_TRY(const serve::ModelInfo info, serve::open_model_info(w.choice));
  serve::CalibrateOptions o;
  MC_TRY(o.blocks, w.count_blocks(info.spec));
  o.tokens = options.calibrate_tokens;
  o.chunk_tokens = options.chunk_tokens;
  MC_TRY_(check_writable(options.calibrate));
  MC_TRY(const auto engine, serve::open_engine(w.choice, w.cpu, w.block_size));
  const SteadyClock clock;
  MC_TRY(const serve::Calibration found,
         serve::calibrate(*engine, clock, o, [](const std::string& line) {
           log_info("calibrate", "%s", line.c_str());
         }));
  cost::ModelSpec spec = engine->spec();
  spec.cost = found.fit.cost;
  MC_TRY_(io::write_file_atomically(options.calibrate, cost::to_json(spec).dump(2) + "\n"));
  const auto text = [](const char* what, size_t points, const cost::FitError& e) {
    return strf("%s: %zu points, %.1f %% off on average, %.1f %% at worst", what, points,
                100 * e.mean, 100 * e.worst);
  };
  std::printf("%s\n%s\nwritten to %s\n",
              text("prompts", found.prefill.size(), found.fit.prefill).c_str(),
              text("steps", found.steps.size(), found.fit.step).c_str(), options.calibrate.c_str());
  return 0;
}

}  // namespace mc
