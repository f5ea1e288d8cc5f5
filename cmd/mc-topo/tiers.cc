#include "topo/model/tiers.h"

#include "base/json.h"
#include "cmd/mc-topo/verbs.h"
#include "topo/formats/json.h"
#include "topo/report/render.h"

namespace mc::topo {

void add_tiers(Program& program) {
  program.verb<TopoOptions>(
      "tiers", "print which RDMA devices serve which GPU and NUMA node, and why",
      [](Verb& v, TopoOptions& o) {
        v.example("mc-topo tiers", "the tiers of this machine");
        v.example("mc-topo tiers --sysfs /tmp/other --output json | jq '.gpus[0].tiers'",
                  "the first GPU's tiers on a machine recorded elsewhere");
        v.run_with([&o](Context& context) -> Result<int> {
          MC_TRY(const Machine machine, o.machine());
          const TierTable table = tier_table(machine);
          put(context.json ? dump_json(tiers_json(machine, table)) + "\n"
                           : tiers_text(machine, table));
          return 0;
        });
      });
}

}  // namespace mc::topo
