#include "cmd/mc-conductor/set_role.h"

#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "http/client.h"
#include "rpc/client.h"
#include "serve/protocol/messages.h"
#include "serve/worker/role_manager.h"

namespace mc {
namespace {

struct SetRoleOptions {
  std::string worker, role, cluster_key, url = "http://127.0.0.1:8000";
  Duration timeout = std::chrono::seconds(5);
  void describe(OptionList& v) {
    v("cluster-key", cluster_key,
      "file (mode 0600) with the secret all processes of a cluster share");
    v("timeout", timeout, "how long the worker may take to answer");
    v("url", url, "of its conductor's API, which tells whether others of its role are left");
  }
};

constexpr Duration kClusterTimeout = std::chrono::seconds(2);

Result<Json> read_cluster(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  SteadyClock clock;
  io::Loop loop(clock);
  http::Client client(loop);
  http::ClientRequest request;
  request.url = url + "/cluster";
  request.timeout = kClusterTimeout;
  std::optional<Result<http::ClientResponse>> done;
  http::ClientCallbacks calls;
  calls.on_done = [&done](Result<http::ClientResponse> answer) { done = std::move(answer); };
  client.send(std::move(request), std::move(calls));
  while (!done) MC_TRY_(loop.turn(std::chrono::hours(1)));
  if (!*done) return fail(std::move(*done).error());
  if ((*done)->status != 200) return fail(Code::kDenied, "HTTP %d", (*done)->status);
  return parse_json((*done)->body);
}

bool keeps(const std::string& role, const std::string& half) {
  return role == half || role == "both";
}

// What the cluster lacks once the worker has that role: "p0 is the last prefill worker"; "":
// nothing. kNotFound: it is not in this cluster.
Result<std::string> lacks_after(const Json& cluster, const SetRoleOptions& o) {
  const Json* const nodes = member(cluster, "nodes");
  if (nodes == nullptr || !nodes->is_array()) return fail(Code::kCorrupt, "it lists no nodes");
  bool found = false;
  std::string last;
  for (const char* const half : {"prefill", "decode"}) {
    std::string mine;
    size_t others = 0;
    for (const Json& node : *nodes) {
      const bool its = get_string(node, "control").value_or("") == o.worker;
      found |= its;
      if (get_string(node, "role").value_or("") != half) continue;
      const Json* const draining = member(node, "draining");
      const bool leaves = draining != nullptr && *draining == true;
      if (its) mine = get_string(node, "name").value_or("");
      if (!its && !leaves) ++others;
    }
    if (!mine.empty() && others == 0 && !keeps(o.role, half))
      last += (last.empty() ? "" : ", ") + escape(mine) + " is the last " + half + " worker";
  }
  if (!found) return fail(Code::kNotFound, "it has no worker %s", escape(o.worker).c_str());
  return last;
}

// It is done all the same: another one may be about to join.
std::string warn_of_the_last(const SetRoleOptions& o) {
  const auto last =
      read_cluster(o.url).and_then([&o](const Json& cluster) { return lacks_after(cluster, o); });
  if (!last)
    log_info("conductor", "whether others of its role are left is not known: %s: %s (--url)",
             o.url.c_str(), last.error().what.c_str());
  else if (!last->empty())
    log_warn("conductor", "%s: until another one joins, requests are answered with 503",
             last->c_str());
  return last.value_or("");
}

Result<int> set_role(const SetRoleOptions& o, const Context& context) {
  MC_TRY_(serve::role_named(o.role));
  MC_TRY_(rpc::load_cluster_key(o.cluster_key));
  SteadyClock clock;
  MC_TRY(const auto worker, rpc::SyncClient::connect(o.worker, clock));
  const std::string last = warn_of_the_last(o);
  MC_TRY(const serve::RoleSet set, worker->call(serve::SetRole{o.role}, o.timeout));
  Json answer = {{"was", set.was}, {"will_be", set.will_be}};
  if (!last.empty()) answer["warning"] = last;
  const std::string text = context.json
                               ? dump_json(answer)
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
