#include "base/json.h"
#include "cmd/mc-topo/verbs.h"
#include "rpc/client.h"
#include "rpc/socket.h"
#include "topo/formats/json.h"
#include "xfer/core/messages.h"

namespace mc::topo {
namespace {

constexpr Duration kBudget = std::chrono::seconds(5);

Result<Machine> machine_of_node(const std::string& control) {
  SteadyClock clock;
  MC_TRY(const auto client, rpc::SyncClient::connect(control, clock));
  MC_TRY(const auto reply, client->call(xfer::DescribeMachine{}, kBudget));
  const std::string where = "node " + control;
  const auto json = parse_json(reply.json.bytes);
  if (!json) {
    return fail(Code::kCorrupt, "%s: %s", where.c_str(), json.error().what.c_str());
  }
  return machine_from_json(*json, where);
}

}  // namespace

Result<Machine> TopoOptions::machine() const {
  if (!sysfs.empty() + !xml.empty() + !node.empty() > 1) {
    return fail(Code::kInvalid,
                "--sysfs, --xml and --node are different machines: give one of them");
  }
  MC_TRY_(rpc::load_cluster_key(cluster_key));
  if (!node.empty()) return machine_of_node(node);
  if (!xml.empty()) return discover_xml(xml);
  return sysfs.empty() ? discover_live() : discover_sysfs(sysfs);
}

Result<Machine> machine_named(const std::string& word) {
  if (word.starts_with("node:")) return machine_of_node(word.substr(5));
  return discover_any(word);
}

}  // namespace mc::topo
