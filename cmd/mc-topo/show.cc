#include "base/json.h"
#include "cmd/mc-topo/verbs.h"
#include "topo/json.h"
#include "topo/picture.h"
#include "topo/render.h"

namespace mc::topo {
namespace {

struct ShowOptions {
  TopoOptions source;
  bool svg = false, dot = false;
  void describe(OptionList& v) {
    v("svg", svg, "print a picture as SVG");
    v("dot", dot, "print a graph for graphviz");
    source.describe(v);
  }
};

Result<int> show(const ShowOptions& o, const Context& context) {
  if (o.svg + o.dot + context.json > 1) {
    return fail(Code::kInvalid, "--svg, --dot and --output json are three forms: give one of them");
  }
  MC_TRY(const Machine machine, o.source.machine());
  if (o.svg) {
    put(machine_svg(machine));
  } else if (o.dot) {
    put(machine_dot(machine));
  } else {
    put(context.json ? dump_json(machine_json(machine)) + "\n" : machine_text(machine));
  }
  return 0;
}

}  // namespace

void add_show(Program& program) {
  program.verb<ShowOptions>("show", "print the machine as a tree", [](Verb& v, ShowOptions& o) {
    v.example("mc-topo show", "this machine");
    v.example("mc-topo show --sysfs /tmp/other --output json",
              "another machine's recorded /sys, as JSON");
    v.example("mc-topo show --xml machine.xml --svg > machine.svg", "a picture of it");
    v.run_with([&o](Context& context) { return show(o, context); });
  });
}

}  // namespace mc::topo
