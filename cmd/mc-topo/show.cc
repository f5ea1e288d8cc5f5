#include "base/json.h"
#include "cmd/mc-topo/verbs.h"
#include "topo/json.h"
#include "topo/render.h"

namespace mc::topo {

void add_show(Program& program) {
  program.verb<TopoOptions>("show", "print the machine as a tree", [](Verb& v, TopoOptions& o) {
    v.example("mc-topo show", "this machine");
    v.example("mc-topo show --sysfs /tmp/other --output json",
              "another machine's recorded /sys, as JSON");
    v.run_with([&o](Context& context) -> Result<int> {
      MC_TRY(const Machine machine, o.machine());
      put(context.json ? dump_json(machine_json(machine)) + "\n" : machine_text(machine));
      return 0;
    });
  });
}

}  // namespace mc::topo
