// The paper's evaluation, as far as a simulator can repeat it: each figure or table with our value
// beside the published one, the setting assumed, and a verdict that says where they agree.
//
// Nothing is fitted to a figure here: times come from the model's coefficients, which were fitted
// once (configs/models/llama3-70b.json), and caches from the traces. Where a trace is not at hand
// it is synthesized from its profile, and the figure says so. Simulation is quoted as simulation.
//
// Thread: values; any thread. Pure: no clock, no I/O.
// Source: Mooncake (FAST 2025 and the journal version); vector figures read to about 0.5 %.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "cost/model_spec.h"
#include "trace/records/records.h"

namespace mc::sim {

struct PaperRow {
  std::string what;
  std::optional<double> published, ours;
  bool judged = true;  // false: of another system; shown beside ours, but no part of the verdict
};

// What a figure looks like over time; those of one chart are drawn together.
struct PaperCurve {
  std::string chart, name;
  std::vector<std::pair<double, double>> points;  // seconds, value
};

// What the paper says in words, and whether it is so here.
struct PaperClaim {
  std::string what;
  bool holds;
};

struct PaperFigure {
  std::string id, title, unit, setting;
  std::vector<PaperRow> rows;
  double tolerance = 0.15;  // relative; within it values agree
  std::string note;
  std::string verdict;  // from rows and tolerance
  std::vector<PaperCurve> curves = {};
  std::vector<PaperClaim> claims = {};
};

struct PaperInput {
  cost::ModelSpec spec;
  trace::Trace conversation, tool_agent, documents;
  uint64_t seed = 0;
};

std::vector<std::string> paper_figures();  // their ids, in order: "eq2", "table3", "fig1", ...

Result<> check_figures(const std::vector<std::string>& ids);  // kInvalid for one that is none

Result<std::vector<PaperFigure>> reproduce(const PaperInput& input,
                                           const std::vector<std::string>& ids);

// Of rows that have both values and are judged: how far apart the worst is, and whether they rank
// alike. Of what the paper says in words: how much of it holds.
std::string verdict_of(const PaperFigure& figure);

std::string paper_text(const std::vector<PaperFigure>& figures);  // Markdown
std::string paper_html(const std::vector<PaperFigure>& figures);  // one file, no other needed
Json paper_json(const std::vector<PaperFigure>& figures);

}  // namespace mc::sim
