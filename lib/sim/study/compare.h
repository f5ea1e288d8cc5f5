// Compares two or more results of `mc-replay run` or `mc-replay sim`.
// The first is the base of the comparison.
//
// A result of several runs (--repeat) has a 95 % interval around each figure. Two figures differ
// when their intervals do not overlap. Single runs have no interval, and the verdict says so.
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
  std::vector<std::optional<Interval>> figures;  // in the order of compared_figures()
};

const std::vector<std::string>& compared_figures();

// The result in a report (schema mc-replay/1), or one for each point of a study
// (mc-replay-study/1). Errors: kInvalid with `file` when it is neither.
Result<std::vector<Outcome>> results_of(const Json& json, const std::string& file);

Difference difference(const std::optional<Interval>& base, const std::optional<Interval>& other);
std::string comparison_text(const std::vector<Outcome>& results);
Json comparison_json(const std::vector<Outcome>& results);

}  // namespace mc::sim
