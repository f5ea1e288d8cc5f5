#include "base/json.h"
#include "cmd/mc-topo/rails.h"
#include "cmd/mc-topo/verbs.h"
#include "rpc/socket.h"

namespace mc::topo {
namespace {

struct PairOptions {
  std::string a, b;  // positionals
  std::string cluster_key;
  bool all = false;
  void describe(OptionList& v) {
    v("all", all, "also the pairs outside the rail map");
    v("cluster-key", cluster_key, "file with the cluster's secret, for node:HOST:PORT");
  }
};

Json end_json(const xfer::Nic& nic) {
  return {{"name", nic.name},
          {"address", nic.address},
          {"numa", nic.numa < 0 ? Json(nullptr) : Json(nic.numa)},
          {"gpu", nic.gpu}};
}

std::string end_text(const xfer::Nic& nic) {
  std::string out = nic.name;
  if (nic.numa >= 0)
    out += strf(" (node %d", nic.numa) + (nic.gpu.empty() ? "" : ", " + nic.gpu) + ")";
  return out;
}

const char* explain(const std::string& why) {
  if (why == "subnet") return "addresses of one subnet";
  if (why == "name") return "the same name";
  if (why == "numa") return "the same position on the same NUMA node";
  if (why == "gpu") return "near the same GPU";
  if (why == "probed") return "least measured latency";
  return "remaining NICs, in order";
}

}  // namespace

void add_pair(Program& program) {
  program.verb<PairOptions>(
      "pair", "pair the NICs of two machines as rails", [](Verb& v, PairOptions& o) {
        v.positional("A", o.a,
                     "live, a folder, an XML file, a JSON file of show, or node:HOST:PORT");
        v.positional("B", o.b, "the same, of the other machine");
        v.example("mc-topo pair live /tmp/other", "which NIC here talks to which NIC there");
        v.run_with([&o](Context& context) -> Result<int> {
          MC_TRY_(rpc::load_cluster_key(o.cluster_key));
          MC_TRY(const Machine a, machine_named(o.a));
          MC_TRY(const Machine b, machine_named(o.b));
          const Rails rails = pair_machines(a, b);
          if (context.json) {
            Json out = Json::array();
            for (const auto& pair : rails.pairs) {
              if (!pair.mapped && !o.all) continue;
              out.push_back({{"local", end_json(rails.local[pair.local])},
                             {"remote", end_json(rails.remote[pair.remote])},
                             {"mapped", pair.mapped},
                             {"why", pair.why}});
            }
            put(dump_json({{"rails", std::move(out)}}) + "\n");
            return 0;
          }
          if (rails.pairs.empty()) {
            put(strf("no rail: A has %zu usable NICs, B %zu\n", rails.local.size(),
                     rails.remote.size()));
          }
          for (const auto& pair : rails.pairs) {
            if (!pair.mapped && !o.all) continue;
            put(strf("%-28s -> %-28s %s\n", end_text(rails.local[pair.local]).c_str(),
                     end_text(rails.remote[pair.remote]).c_str(),
                     pair.mapped ? explain(pair.why) : "retries only"));
          }
          return 0;
        });
      });
}

}  // namespace mc::topo
