// Results side by side: two or more, live or simulated, of "mc-replay run" or "mc-replay sim". The
// first is what the others are compared with.
//
// A result of several runs (--repeat) has an interval of 95 % around each figure. Two figures
// differ when their intervals have no point in common; of single runs nobody can tell, and the
// verdict says so.
//
// Thread: values; any thread. Pure: no clock, no I/O.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "sim/study/study.h"

namespace mc::sim {

enum class Difference { kUnknown, kSame, kDiffers };
const char* name(Difference difference);

struct Outcome {  // one column
  std::string label;
  std::string mode;                              // "live" or "sim"
  uint64_t requests = 0;                         // of its trace
  std::vector<std::optional<Interval>> figures;  // as compared_figures() lists them
};

const std::vector<std::string>& compared_figures();

// The results in a report (schema mc-replay/1) or a study (mc-replay-study/1: one for each point).
// Errors: kInvalid naming `file` when it is neither.
Result<std::vector<Outcome>> results_of(const Json& json, const std::string& file);

Difference difference(const std::optional<Interval>& base, const std::optional<Interval>& other);
std::string comparison_text(const std::vector<Outcome>& results);
Json comparison_json(const std::vector<Outcome>& results);

}  // namespace mc::sim
