#include "base/json.h"
#include "cmd/mc-topo/verbs.h"
#include "topo/formats/json.h"
#include "topo/report/render.h"

namespace mc::topo {
namespace {

struct MatrixOptions {
  TopoOptions source;
  std::string form = "mc";
  void describe(OptionList& v) {
    v("form", form, "of the JSON: our own, or the reference system's custom topology",
      {"mc", "reference"});
    source.describe(v);
  }
};

}  // namespace

void add_matrix(Program& program) {
  program.verb<MatrixOptions>("matrix", "print the topology matrix: every location by every NIC",
                              [](Verb& v, MatrixOptions& o) {
                                v.example("mc-topo matrix", "a table of tiers");
                                v.example(
                                    "mc-topo matrix --output json --form reference > topo.json",
                                    "a file for MC_CUSTOM_TOPO_JSON of the reference system");
                                v.run_with([&o](Context& context) -> Result<int> {
                                  MC_TRY(const Machine machine, o.source.machine());
                                  const TierTable table = tier_table(machine);
                                  if (o.form == "reference") {
                                    put(dump_json(reference_matrix_json(table), 2) + "\n");
                                  } else {
                                    put(context.json ? dump_json(matrix_json(machine, table)) + "\n"
                                                     : matrix_text(machine, table));
                                  }
                                  return 0;
                                });
                              });
}

}  // namespace mc::topo
