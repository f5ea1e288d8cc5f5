// Runs simulations: one, a sweep over options, or repeats with other seeds.
// It also formats their results.
//
//   --sweep policy=kvcache,random --sweep speed=1,2   every combination: four points
//   --repeat 5                                        each point with five seeds; means with a
//                                                     95 % confidence interval (Student's t)
//
// Any option of SimOptions can be swept, and: speed, qps, and pd=P:D for both node counts.
//
// Thread: values; any thread. run_study() uses several.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "sim/cluster/cluster.h"

namespace mc::sim {

struct StudyOptions {
  SimOptions sim;
  trace::PlayOptions play;
  uint64_t repeat = 1;
  uint64_t threads = 0;            // 0: one for each CPU. Results do not depend on it.
  std::vector<std::string> sweep;  // "name=v1,v2", commas split or not
};

using Setting = std::vector<std::pair<std::string, std::string>>;  // option: value

struct Run {
  Setting setting;
  uint64_t seed = 0;
  trace::RunInfo info;
  trace::Summary summary;
  SimResult result;  // without its requests, unless it is the only run
};

// Errors: kInvalid for an unknown option or value, naming the option, and for more than 1000 runs.
Result<std::vector<Run>> run_study(const trace::Trace& trace, const cost::ModelSpec& spec,
                                   const StudyOptions& options);
Result<> check_sweep(const StudyOptions& options);

struct Interval {
  double mean = 0, half = 0;  // half the width of the 95 % interval; 0 for a single value
  uint64_t n = 0;
};
Interval interval(const std::vector<double>& values);

Json options_json(const SimOptions& options);
Json sim_json(const SimResult& result, const trace::Summary& summary);
std::string sim_text(const SimResult& result, const trace::Summary& summary);
std::string study_text(const std::vector<Run>& runs);
Json study_json(const std::vector<Run>& runs, const StudyOptions& options);
std::string timeline_csv(const SimResult& result);

}  // namespace mc::sim
