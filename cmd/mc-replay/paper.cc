#include "sim/paper/paper.h"

#include <cstdio>

#include "base/json.h"
#include "cmd/mc-replay/files.h"
#include "cmd/mc-replay/verbs.h"
#include "io/file.h"
#include "trace/synth/synth.h"

namespace mc::replay {
namespace {

struct PaperFlags {
  std::vector<std::string> figures, named;
  std::string conversation, tool_agent, synthetic, model = "llama3-70b", report;
  uint64_t seed = 0;

  void describe(OptionList& v) {
    v("figures", figures, "only these, as fig5,table4; empty: all");
    v("conversation", conversation, "the recorded trace; empty: one of the profile");
    v("tool-agent", tool_agent, "the recorded trace; empty: one of the profile");
    v("synthetic", synthetic, "the recorded trace; empty: one of the profile 'documents'");
    v("model", model, "JSON file, or the name of one in configs/models");
    v("seed", seed, "of the traces that are made");
    v("report", report, "file for the report: .html, .json, or Markdown");
  }
};

Result<trace::Trace> workload(const std::string& path, const char* profile, uint64_t seed) {
  if (!path.empty()) return trace::read_trace(path);
  MC_TRY(const std::string file, find_config("profile", profile));
  MC_TRY(const Json json, read_json_file(file));
  trace::Trace t;
  t.name = profile;
  MC_TRY(t.records, trace::synthesize(json, file, {.seed = seed}));
  return t;
}

// The report says which traces were recorded.
std::string origin(const PaperFlags& o) {
  const auto one = [](const char* name, const std::string& path) {
    return std::string(name) + (path.empty() ? ": made from its profile" : ": recorded");
  };
  return one("conversation", o.conversation) + "; " + one("tool&agent", o.tool_agent) + "; " +
         one("synthetic", o.synthetic);
}

Result<int> paper(const PaperFlags& o, const Context& context) {
  std::vector<std::string> ids = o.figures;
  ids.insert(ids.end(), o.named.begin(), o.named.end());
  MC_TRY_(sim::check_figures(ids));
  sim::PaperInput in;
  in.seed = o.seed;
  MC_TRY(const std::string model, find_config("model", o.model));
  MC_TRY(in.spec, cost::load_spec(model));
  MC_TRY(in.conversation, workload(o.conversation, "conversation", o.seed));
  MC_TRY(in.tool_agent, workload(o.tool_agent, "tool-agent", o.seed));
  MC_TRY(in.documents, workload(o.synthetic, "documents", o.seed));
  MC_TRY(auto figures, sim::reproduce(in, ids));
  for (sim::PaperFigure& f : figures)
    if (f.id != "eq2" && f.id != "fig22") f.setting += ". Traces: " + origin(o);
  const std::string text = sim::paper_text(figures);
  const Json json = sim::paper_json(figures);
  const std::string out = context.json ? dump_json(json) + "\n" : text;
  std::fputs(out.c_str(), stdout);
  if (!o.report.empty())
    MC_TRY_(io::write_output(o.report, o.report.ends_with(".html")   ? paper_html(figures)
                                       : o.report.ends_with(".json") ? dump_json(json, 2) + "\n"
                                                                     : text));
  return 0;
}

}  // namespace

void add_paper(Program& program) {
  program.verb<PaperFlags>(
      "paper", "repeat the paper's evaluation in the simulator, with the published numbers",
      [](Verb& v, PaperFlags& o) {
        v.positional_many("FIGURE", o.named, "only these, as fig5", false);
        v.example("mc-replay paper fig5 table4",
                  "policies and refusals, with the published figures");
        v.example("mc-replay paper --conversation conversation_trace.jsonl --report paper.html",
                  "everything, with the recorded trace where there is one");
        v.run_with([&o](Context& c) { return paper(o, c); });
      });
}

}  // namespace mc::replay
