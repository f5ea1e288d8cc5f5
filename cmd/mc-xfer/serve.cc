// mc-xfer serve: offers memory, or the files of a folder, to peers.
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "cmd/daemon.h"
#include "cmd/mc-xfer/client.h"
#include "cmd/mc-xfer/verbs.h"
#include "http/server.h"
#include "io/signals.h"
#include "p2p/filecopy/service.h"
#include "rpc/server.h"
#include "xfer/core/scratch_memory.h"
#include "xfer/engine.h"

namespace mc::xfer {
namespace {

struct ServeOptions {
  std::string listen = "127.0.0.1:5600";
  std::string http = "127.0.0.1:5601";
  std::string name;
  std::string root, device;
  Bytes size{256 * kMiB};
  std::vector<std::string> files;
  Bytes file_size;
  bool writable = false, memory_writable = true;
  EngineOptions engine;
  DaemonOptions daemon;
  void describe(OptionList& v) {
    v("listen", listen, "control address; port 0 takes a free one");
    v("http", http, "address of /metrics, /live, /ready and /health");
    v("name", name, "unique name of this node; empty: xfer-PID");
    v("root", root, "offer the files below this folder, for copy, instead of memory");
    v("file", files, "offer these files, or block devices, as if they were memory behind --size");
    v("file-size", file_size, "bytes of each --file, made or lengthened to that; 0: all it has");
    v("writable", writable, "let peers write below --root and to each --file");
    v("size", size, "memory to offer; with --root, to stage files in: 4 MiB for each at a time");
    v("device", device,
      "have the memory on a device: cuda, cuda:1, or stand-in; empty: the host's");
    v("memory-writable", memory_writable, "let peers write to the memory offered");
    engine.describe(v);
    daemon.describe(v);
  }
};

// Memory first, so that it begins at offset 0.
Result<std::vector<Memory>> offer(Engine& engine, const ServeOptions& o, const Clock& clock) {
  if (o.size == 0 && (o.files.empty() || !o.root.empty()))
    return fail(Code::kInvalid, o.root.empty() ? "nothing to offer: give --size, --file or both"
                                               : "--root needs memory to stage files in: --size");
  if (!o.root.empty() && !o.device.empty())
    return fail(Code::kInvalid,
                "--root stages files in the host's memory: it goes without --device");
  std::vector<Memory> offered;
  std::string location = "*";
  if (!o.device.empty()) {
    MC_TRY(location, add_device(engine, o.device, clock));
  }
  if (o.size > 0) {
    const bool writable = o.root.empty() ? o.memory_writable : o.writable;
    MC_TRY(Memory memory, engine.allocate(o.size, writable, location));
    offered.push_back(std::move(memory));
  }
  for (const std::string& path : o.files) {
    MC_TRY(Memory file, engine.register_file(path, o.file_size, o.writable));
    log_info("xfer", "%s is at offset %llu, %llu bytes", path.c_str(),
             static_cast<unsigned long long>(file.offset()),
             static_cast<unsigned long long>(file.size()));
    offered.push_back(std::move(file));
  }
  return offered;
}

std::string health_of(std::span<const Memory> offered, const ServeOptions& o) {
  Json files = Json::array();
  uint64_t bytes = 0;
  for (const Memory& m : offered) {
    bytes += m.size();
    if (!m.bytes().empty()) continue;
    files.push_back({{"path", o.files[files.size()]}, {"offset", m.offset()}, {"bytes", m.size()}});
  }
  return dump_json({{"bytes", bytes}, {"files", files}}) + "\n";
}

Result<int> run(ServeOptions& o) {
  MC_TRY_(o.daemon.load());
  if (o.writable && o.root.empty() && o.files.empty())
    return fail(Code::kInvalid, "--writable needs --root: which folder may peers write to?");
  if (o.name.empty()) o.name = "xfer-" + std::to_string(::getpid());
  SteadyClock clock;
  io::Loop loop(clock);
  io::Signals signals(loop, [&](int) { loop.stop(); });
  Metrics metrics;
  o.engine.node = o.name;
  MC_TRY(auto engine, Engine::open(clock, o.engine, metrics));
  MC_TRY(const std::vector<Memory> offered, offer(*engine, o, clock));
  MC_TRY(auto server, rpc::Server::open(loop, o.listen, metrics));
  xfer::serve(*engine, *server);
  const bool scratch = o.size > 0 && o.memory_writable && o.root.empty();
  server->on<AskScratch>([bytes = scratch ? offered.front().size() : 0](
                             const AskScratch&, const rpc::Call&) -> Result<ScratchMemory> {
    return ScratchMemory{bytes};
  });
  std::unique_ptr<p2p::filecopy::Service> folder;
  if (!o.root.empty()) {
    p2p::filecopy::Service::Config config;
    config.writable = o.writable;
    config.seed = fresh_seed();
    MC_TRY(folder, p2p::filecopy::Service::open(loop, o.root, offered.front(), config));
    folder->serve(*server);
  }
  MC_TRY(auto pages, http::Server::open(loop, o.http, {}, [&](const http::Exchange& x) {
           if (!http::serve_common(x, metrics, "", health_of(offered, o)))
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
        v.example("mc-xfer serve --size 0 --file model.bin",
                  "offer the bytes of a file at offset 0, read-only");
        v.run_with([&o](Context&) { return run(o); });
      });
}

}  // namespace mc::xfer
