#include "topo/report/diff.h"

#include "base/json.h"
#include "cmd/mc-topo/verbs.h"
#include "rpc/socket.h"

namespace mc::topo {
namespace {

struct DiffOptions {
  std::string before, after;  // positionals
  std::string cluster_key;
  void describe(OptionList& v) {
    v("cluster-key", cluster_key, "file with the cluster's secret, for node:HOST:PORT");
  }
};

Json to_json(const std::vector<Change>& changes) {
  Json out = Json::array();
  const auto or_null = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  for (const Change& c : changes) {
    out.push_back({{"device", c.device},
                   {"fact", or_null(c.fact)},
                   {"before", or_null(c.before)},
                   {"after", or_null(c.after)}});
  }
  return {{"changes", std::move(out)}};
}

}  // namespace

void add_diff(Program& program) {
  program.verb<DiffOptions>(
      "diff", "say what differs between two machines", [](Verb& v, DiffOptions& o) {
        v.positional("A", o.before,
                     "live, a folder, an XML file, a JSON file of show, or node:HOST:PORT");
        v.positional("B", o.after, "the same, of the machine to compare with");
        v.exit_status(1, "they differ, or one cannot be read");
        v.example("mc-topo diff /tmp/yesterday live", "what changed since mc-topo capture");
        v.run_with([&o](Context& context) -> Result<int> {
          MC_TRY_(rpc::load_cluster_key(o.cluster_key));
          MC_TRY(const Machine before, machine_named(o.before));
          MC_TRY(const Machine after, machine_named(o.after));
          const auto changes = differences(before, after);
          put(context.json ? dump_json(to_json(changes)) + "\n" : changes_text(changes));
          return changes.empty() ? 0 : 1;
        });
      });
}

}  // namespace mc::topo
