#include <unistd.h>

#include "cmd/daemon.h"
#include "cmd/mc-xfer/verbs.h"
#include "http/server.h"
#include "io/signals.h"
#include "rpc/server.h"
#include "xfer/engine.h"

namespace mc::xfer {
namespace {

struct ServeOptions {
  std::string listen = "127.0.0.1:5600";
  std::string http = "127.0.0.1:5601";
  std::string name;
  Bytes size{256 * kMiB};
  bool writable = true;
  EngineOptions engine;
  DaemonOptions daemon;
  void describe(OptionList& v) {
    v("listen", listen, "control address; port 0 takes a free one");
    v("http", http, "address of /metrics, /live, /ready and /health");
    v("name", name, "unique name of this node; empty: xfer-PID");
    v("size", size, "memory to offer");
    v("writable", writable, "let peers write to it");
    engine.describe(v);
    daemon.describe(v);
  }
};

Result<int> run(ServeOptions& o) {
  MC_TRY_(o.daemon.load());
  if (o.name.empty()) o.name = "xfer-" + std::to_string(::getpid());
  SteadyClock clock;
  io::Loop loop(clock);
  io::Signals signals(loop, [&](int) { loop.stop(); });
  Metrics metrics;
  o.engine.node = o.name;
  MC_TRY(auto engine, Engine::open(clock, o.engine, metrics));
  MC_TRY(const Memory memory, engine->allocate(o.size, o.writable));
  MC_TRY(auto server, rpc::Server::open(loop, o.listen, metrics));
  xfer::serve(*engine, *server);
  MC_TRY(auto pages, http::Server::open(loop, o.http, {}, [&](const http::Exchange& x) {
           const std::string health = "{\"bytes\":" + std::to_string(memory.size()) + "}\n";
           if (!http::serve_common(x, metrics, "", health))
             x.reply(404, "text/plain", "no such page: try /live, /ready, /health or /metrics\n");
         }));
  Endpoints me;
  me.name = o.name;
  me.role = "xfer";
  me.epoch = engine->generation().n;
  me.control = server->address();
  me.http = pages->address();
  me.data = engine->data_addresses();
  MC_TRY_(o.daemon.ready(me));
  MC_TRY_(loop.run());
  o.daemon.stopping();
  return 0;
}

}  // namespace

void add_serve(Program& program) {
  program.verb<ServeOptions>("serve", "offer memory to peers until SIGTERM",
                             [](Verb& v, ServeOptions& o) {
                               v.example("mc-xfer serve --size 1GiB", "offer 1 GiB on port 5600");
                               v.run_with([&o](Context&) { return run(o); });
                             });
}

}  // namespace mc::xfer
