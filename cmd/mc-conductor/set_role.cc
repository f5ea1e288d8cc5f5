#include "cmd/mc-conductor/set_role.h"

#include <cstdio>

#include "base/json.h"
#include "rpc/client.h"
#include "serve/protocol/messages.h"
#include "serve/worker/role_manager.h"

namespace mc {
namespace {

struct SetRoleOptions {
  std::string worker, role, cluster_key;
  Duration timeout = std::chrono::seconds(5);
  void describe(OptionList& v) {
    v("cluster-key", cluster_key,
      "file (mode 0600) with the secret all processes of a cluster share");
    v("timeout", timeout, "how long the worker may take to answer");
  }
};

Result<int> set_role(const SetRoleOptions& o, const Context& context) {
  MC_TRY_(serve::role_named(o.role));
  MC_TRY_(rpc::load_cluster_key(o.cluster_key));
  SteadyClock clock;
  MC_TRY(const auto worker, rpc::SyncClient::connect(o.worker, clock));
  MC_TRY(const serve::RoleSet set, worker->call(serve::SetRole{o.role}, o.timeout));
  const std::string text = context.json
                               ? dump_json({{"was", set.was}, {"will_be", set.will_be}})
                               : strf("%s: %s, to be %s once it is drained", o.worker.c_str(),
                                      set.was.c_str(), set.will_be.c_str());
  std::puts(text.c_str());
  return 0;
}

}  // namespace

void add_set_role(Program& program) {
  program.verb<SetRoleOptions>(
      "set-role", "make a worker another one, once it is drained", [](Verb& v, SetRoleOptions& o) {
        v.positional("WORKER", o.worker, "its control address");
        v.positional("ROLE", o.role, "prefill, decode, both or auto");
        v.example("mc-conductor set-role 127.0.0.1:5580 decode",
                  "let a prefill worker generate tokens instead");
        v.run_with([&o](Context& context) { return set_role(o, context); });
      });
}

}  // namespace mc
