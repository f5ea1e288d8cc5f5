#include <unistd.h>

#include "base/json.h"
#include "cmd/mc-store/verbs.h"
#include "http/server.h"
#include "io/signals.h"
#include "rpc/server.h"
#include "store/node.h"

namespace mc::store {
namespace {

struct ServeOptions {
  std::string listen = "127.0.0.1:5570";
  std::string http = "127.0.0.1:5571";
  std::string name;
  NodeOptions node;
  xfer::EngineOptions engine;
  DaemonOptions daemon;
  void describe(OptionList& v) {
    v("listen", listen, "control address; port 0 takes a free one");
    v("http", http, "address of /metrics, /live, /ready, /health and /state");
    v("name", name, "unique name of this node; empty: store-PID");
    node.describe(v);
    engine.describe(v);
    daemon.describe(v);
  }
};

std::string state_text(const Node& node) {
  return dump_json({{"mounted", node.mounted()},
                    {"epoch", node.epoch()},
                    {"capacity", node.capacity()},
                    {"objects", node.directory().objects()},
                    {"bytes", node.directory().bytes()}}) +
         "\n";
}

Result<int> serve(ServeOptions options) {
  MC_TRY_(options.daemon.load());
  if (options.name.empty()) options.name = "store-" + std::to_string(::getpid());
  SteadyClock clock;
  io::Loop loop(clock);
  std::unique_ptr<Node> node;
  io::Signals signals(loop, [&](int n) {
    if (n > 1 || node == nullptr) return loop.stop();
    node->stop([&] { loop.stop(); });
  });
  Metrics metrics;
  options.engine.node = options.name;
  MC_TRY(auto engine, xfer::Engine::open(clock, options.engine, metrics));
  MC_TRY(auto server, rpc::Server::open(loop, options.listen, metrics));
  xfer::serve(*engine, *server);
  MC_TRY(auto pages, http::Server::open(loop, options.http, {}, [&](const http::Exchange& x) {
           if (node == nullptr) return x.reply(503, "text/plain", "starting\n");
           if (http::serve_common(x, metrics, node->not_ready(), state_text(*node))) return;
           if (x.request().path == "/state")
             x.reply(200, "application/json", state_text(*node));
           else
             x.reply(404, "text/plain",
                     "no such page: try /live, /ready, /health, /metrics or /state\n");
         }));
  MC_TRY(node, Node::open(loop, *engine, options.name, server->address(), options.node, metrics));
  Result<> announced;
  node->on_mounted([&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    Endpoints me;
    me.name = options.name;
    me.role = "store";
    me.epoch = node->epoch();
    me.control = server->address();
    me.http = pages->address();
    me.data = engine->data_addresses();
    announced = options.daemon.ready(me);
    if (!announced) loop.stop();
  });
  MC_TRY_(loop.run());
  options.daemon.stopping();
  node.reset();
  MC_TRY_(std::move(announced));
  return 0;
}

}  // namespace

void add_serve(Program& program) {
  program.verb<ServeOptions>(
      "serve", "offer memory of this machine to the store", [](Verb& v, ServeOptions& o) {
        v.example("mc-store serve --size 4GiB", "join the master on 127.0.0.1:5550 with 4 GiB");
        v.example("mc-store serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --name s1",
                  "a second node on the same machine");
        v.run_with([&o](Context&) { return serve(o); });
      });
}

}  // namespace mc::store
