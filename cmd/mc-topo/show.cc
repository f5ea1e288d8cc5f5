#include "base/json.h"
#include "base/units.h"
#include "cmd/mc-topo/verbs.h"
#include "device/cuda.h"
#include "topo/formats/json.h"
#include "topo/report/picture.h"
#include "topo/report/render.h"

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

// The GPUs that programs of this machine can use, as CUDA reports them.
Json cuda_json(const device::Found& found) {
  Json devices = Json::array();
  for (const device::Info& d : found.devices)
    devices.push_back({{"location", d.location()},
                       {"name", d.name},
                       {"pci", d.pci},
                       {"memory_bytes", d.bytes},
                       {"capability", d.capability}});
  return {{"driver", found.driver},
          {"kernels", device::kernels_summary()},
          {"devices", std::move(devices)},
          {"why_none", found.why.what}};
}

std::string cuda_text(const device::Found& found) {
  std::string out = device::cuda_summary() + "\n";
  for (const device::Info& d : found.devices)
    out += strf("  %s  %s  %s  %s  sm_%u\n", d.location().c_str(), d.pci.c_str(), d.name.c_str(),
                rounded_bytes_text(d.bytes).c_str(), d.capability);
  return out;
}

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
    Json json = context.json ? machine_json(machine) : Json();
    if (context.json && o.source.is_live()) json["cuda"] = cuda_json(device::find_cuda());
    put(context.json ? dump_json(json) + "\n" : machine_text(machine));
    if (!context.json && o.source.is_live()) put(cuda_text(device::find_cuda()));
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
