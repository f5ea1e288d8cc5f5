// Reproduces the paper's evaluation in the simulator, as far as it can.
// Each figure or table has our value next to the published one, the assumed setting, and a verdict
// that says where they agree.
//
// Nothing is fitted to a figure here: times come from the model's coefficients, which were fitted
// once (configs/models/llama3-70b.json), and caches from the traces. Where no recorded trace is
// given, one is synthesized from its profile, and the figure says so. Simulated values are labelled
// as simulated.
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
  bool judged = true;  // false: of another system; shown, but no part of the verdict
};

// A figure's values over time. Curves of one chart are drawn together.
struct PaperCurve {
  std::string chart, name;
  std::vector<std::pair<double, double>> points;  // seconds, value
};

// A statement of the paper in words, and whether it holds here.
struct PaperClaim {
  std::string what;
  bool holds;
};

struct PaperFigure {
  std::string id, title, unit, setting;
  std::vector<PaperRow> rows;
  double tolerance = 0.15;  // relative; closer values agree
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

Result<> check_figures(const std::vector<std::string>& ids);  // kInvalid for an unknown id

Result<std::vector<PaperFigure>> reproduce(const PaperInput& input,
                                           const std::vector<std::string>& ids);

// Says how far apart the worst pair of judged values is, whether the pairs rank alike, and how many
// of the paper's statements hold.
std::string verdict_of(const PaperFigure& figure);

std::string paper_text(const std::vector<PaperFigure>& figures);  // Markdown
std::string paper_html(const std::vector<PaperFigure>& figures);  // one file, no other needed
Json paper_json(const std::vector<PaperFigure>& figures);

}  // namespace mc::sim
