#include <unistd.h>

#include "base/random.h"
#include "cmd/daemon.h"
#include "cmd/mc-xfer/verbs.h"
#include "http/server.h"
#include "io/signals.h"
#include "rpc/server.h"
#include "xfer/engine.h"
#include "xfer/files/service.h"

namespace mc::xfer {
namespace {

struct ServeOptions {
  std::string listen = "127.0.0.1:5600";
  std::string http = "127.0.0.1:5601";
  std::string name;
  std::string root;
  Bytes size{256 * kMiB};
  bool writable = false, memory_writable = true;
  EngineOptions engine;
  DaemonOptions daemon;
  void describe(OptionList& v) {
    v("listen", listen, "control address; port 0 takes a free one");
    v("http", http, "address of /metrics, /live, /ready and /health");
    v("name", name, "unique name of this node; empty: xfer-PID");
    v("root", root, "offer the files below this folder, for copy, instead of memory");
    v("writable", writable, "let peers write below --root");
    v("size", size, "memory to offer; with --root, to stage files in: 4 MiB for each at a time");
    v("memory-writable", memory_writable, "let peers write to the memory offered");
    engine.describe(v);
    daemon.describe(v);
  }
};

Result<int> run(ServeOptions& o) {
  MC_TRY_(o.daemon.load());
  if (o.writable && o.root.empty())
    return fail(Code::kInvalid, "--writable needs --root: which folder may peers write to?");
  if (o.name.empty()) o.name = "xfer-" + std::to_string(::getpid());
  SteadyClock clock;
  io::Loop loop(clock);
  io::Signals signals(loop, [&](int) { loop.stop(); });
  Metrics metrics;
  o.engine.node = o.name;
  MC_TRY(auto engine, Engine::open(clock, o.engine, metrics));
  MC_TRY(const Memory memory,
         engine->allocate(o.size, o.root.empty() ? o.memory_writable : o.writable));
  MC_TRY(auto server, rpc::Server::open(loop, o.listen, metrics));
  xfer::serve(*engine, *server);
  std::unique_ptr<files::Service> folder;
  if (!o.root.empty()) {
    files::Service::Config config;
    config.writable = o.writable;
    config.seed = fresh_seed();
    MC_TRY(folder, files::Service::open(loop, o.root, memory, config));
    folder->serve(*server);
  }
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
  program.verb<ServeOptions>(
      "serve", "offer memory, or the files of a folder, to peers until SIGTERM",
      [](Verb& v, ServeOptions& o) {
        v.example("mc-xfer serve --size 1GiB", "offer 1 GiB on port 5600");
        v.example("mc-xfer serve --root /srv/models", "offer files, read-only");
        v.example("mc-xfer serve --root incoming --writable", "let peers copy files here");
        v.run_with([&o](Context&) { return run(o); });
      });
}

}  // namespace mc::xfer
