// Compares a live run with its simulation, part by part.
// It shows how far the simulator's figures hold on this machine.
//
// The simulator takes its times from a model's cost polynomial. A real machine adds messages
// between processes, copies of KV, and the engine's own work. These are read off a quiet run (one
// request at a time, so that nothing waits) and its simulation, then checked against another run,
// under load.
//
// Thread: values; any thread. Pure: no clock, no I/O.
// Source: replay design (calibrate); Mooncake paper, Figure 22 (the parts of TTFT).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "sim/cluster/cluster.h"
#include "trace/play/player.h"
#include "trace/report/report.h"

namespace mc::sim {

struct Spread {
  double mean = 0, p50 = 0, p90 = 0;
};
struct Parts {  // over a run's successful requests; absent: not measured
  std::optional<Spread> ttft_s, queue_s, prefill_s, transfer_s, first_step_s;
  std::optional<Spread> tbt_ms, tpot_ms;
  std::optional<double> hit_ratio;  // of tokens
};
Parts parts_of(const trace::Summary& summary);

// How late the client's own sends were, in seconds: what the machine does to any thread that has to
// run at a time.
struct Lateness {
  double p90 = 0, p99 = 0;
};

// The facts of a live run that its simulation needs, from its report (schema mc-replay/1).
struct LiveRun {
  std::string trace_path;
  uint64_t requests = 0, failed = 0;  // failed: neither successful nor refused
  trace::PlayOptions play;            // arrival, speed, qps, seed
  uint64_t concurrency = 0;           // 0: open loop
  uint64_t prefill = 0, decode = 0;
  std::string policy, admission;
  Parts parts;
  std::optional<Lateness> late;
  double mean_input = 0;  // tokens
};
// Errors: kInvalid with `file` and the missing member.
Result<LiveRun> live_run(const Json& report, const std::string& file);

// What this machine adds to the model's own times.
struct MachineFit {
  double prefill_factor = 1;        // of computing prompts
  double overhead_s = 0;            // of a decision and its messages
  double transfer_bytes_per_s = 0;  // of KV between nodes, loading and checking included; 0: as is
  double step_s = 0;                // added to each decode step; may be negative
};
// The quiet run's requests so far apart that each is over before the next comes.
trace::PlayOptions one_by_one(const LiveRun& quiet, trace::PlayOptions play);
// Errors: kInvalid when a part was not measured in the live run.
Result<MachineFit> fit_machine(const LiveRun& quiet, const Parts& simulated,
                               const cost::ModelSpec& spec);
void apply(const MachineFit& fit, cost::ModelSpec& spec, SimOptions& options);

struct Tolerances {
  double p50 = 0.1, p90 = 0.15;  // of TTFT, TBT and queueing; p50 also of the hit ratio
};
// kUnmeasured: it is over, but the machine ran threads so late that this shows nothing.
enum class Agreement : uint8_t { kNotPromised, kHeld, kOver, kUnmeasured };
struct Comparison {
  std::string name;  // "ttft_s"
  std::string of;    // "mean", "p50", "p90"; "ratio" of hits
  double live = 0, simulated = 0;
  std::optional<double> tolerance = {};  // absent: nothing is promised
  std::optional<double> error = {};      // (simulated - live) / live; absent where live is 0
  Agreement agreement = Agreement::kNotPromised;
};
struct Calibration {
  std::vector<Comparison> figures;
  std::vector<std::string> missing;  // promised, and absent in one of the runs
  std::optional<Lateness> late;      // of the live run
  // kOver: one is proved over, or missing. kUnmeasured: one is over and nothing is proved.
  Agreement verdict = Agreement::kOver;
};
// How many times in a row a part of a request waits for a thread: an error below that many times
// the lateness proves nothing. At p50 the lateness counts at p90, at p90 at p99.
inline constexpr double kWakeups = 4;
Calibration calibrate(const LiveRun& live, const Parts& simulated, const Tolerances& tolerances);

std::string calibration_text(const Calibration& c, const std::optional<MachineFit>& fit);
Json calibration_json(const Calibration& c, const std::optional<MachineFit>& fit);

}  // namespace mc::sim
