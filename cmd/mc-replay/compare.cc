#include "sim/study/compare.h"

#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "cmd/mc-replay/verbs.h"

namespace mc::replay {
namespace {

constexpr size_t kResultsMax = 26;

struct CompareOptions {
  std::vector<std::string> files;
  void describe(OptionList&) {}
};

Result<int> compare(const CompareOptions& o, const Context& context) {
  std::vector<sim::Outcome> results;
  for (const std::string& file : o.files) {
    MC_TRY(const Json json, read_json_file(file));
    MC_TRY(auto some, sim::results_of(json, file));
    if (const auto stopped = json.find("interrupted"); stopped != json.end() && *stopped == true)
      log_warn("replay",
               "%s: the run was stopped by a signal: its figures are of a part of the trace",
               file.c_str());
    for (auto& r : some) results.push_back(std::move(r));
  }
  if (results.size() < 2)
    return fail(Code::kInvalid,
                "one result has nothing to compare with: give two files, or a study");
  if (results.size() > kResultsMax)
    return fail(Code::kInvalid, "%zu results: want at most %zu", results.size(), kResultsMax);
  const std::string out = context.json ? dump_json(sim::comparison_json(results)) + "\n"
                                       : sim::comparison_text(results);
  std::fputs(out.c_str(), stdout);
  return 0;
}

}  // namespace

void add_compare(Program& program) {
  program.verb<CompareOptions>(
      "compare", "compare results: how the others differ from the first",
      [](Verb& v, CompareOptions& o) {
        v.positional_many("FILE", o.files, "JSON of mc-replay run or sim, or of a sweep");
        v.example("mc-replay compare live.json sim.json", "a live run and its simulation");
        v.example("mc-replay compare a.json b.json --output json",
                  "with sim --repeat 5, whether they differ by more than chance");
        v.run_with([&o](Context& context) { return compare(o, context); });
      });
}

}  // namespace mc::replay
