#include "topo/report/check.h"

#include "base/json.h"
#include "cmd/mc-topo/rails.h"
#include "cmd/mc-topo/verbs.h"
#include "topo/discover/host.h"

namespace mc::topo {
namespace {

struct CheckOptions {
  TopoOptions source;
  std::string peer;
  void describe(OptionList& v) {
    v("peer", peer,
      "also compare with this machine: a folder, an XML or JSON file, or node:HOST:PORT");
    source.describe(v);
  }
};

Result<Host> host_of(const TopoOptions& source) {
  if (!source.sysfs.empty()) return host_sysfs(source.sysfs);
  if (source.is_live()) return host_live();
  return Host{};  // such a source describes devices only
}

Json to_json(const std::vector<Finding>& findings) {
  Json out = Json::array();
  for (const Finding& f : findings) {
    out.push_back({{"severity", f.severity == Severity::kWrong ? "wrong" : "note"},
                   {"id", f.id},
                   {"where", f.where},
                   {"what", f.what},
                   {"remedy", f.remedy}});
  }
  return {{"findings", std::move(out)}};
}

Result<int> check(const CheckOptions& o, const Context& context) {
  MC_TRY(const Machine machine, o.source.machine());
  MC_TRY(const Host host, host_of(o.source));
  std::vector<Finding> findings = examine(machine, host);
  if (!o.peer.empty()) {
    MC_TRY(const Machine peer, machine_named(o.peer));
    const Rails rails = pair_machines(machine, peer);
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& pair : rails.pairs) {
      if (!pair.mapped) continue;
      pairs.emplace_back(rails.local[pair.local].name, rails.remote[pair.remote].name);
    }
    for (Finding& f : examine_pairs(machine, peer, pairs)) findings.push_back(std::move(f));
  }
  put(context.json ? dump_json(to_json(findings)) + "\n" : findings_text(findings));
  for (const Finding& f : findings) {
    if (f.severity == Severity::kWrong) return 1;
  }
  return 0;
}

}  // namespace

void add_check(Program& program) {
  program.verb<CheckOptions>(
      "check", "say what is wrong with a machine, and what to do about it",
      [](Verb& v, CheckOptions& o) {
        v.exit_status(1, "something is wrong, or the machine cannot be read");
        v.example("mc-topo check", "this machine (as root it sees more)");
        v.example("mc-topo check --peer /tmp/other", "and whether its NICs fit another machine's");
        v.run_with([&o](Context& context) { return check(o, context); });
      });
}

}  // namespace mc::topo
