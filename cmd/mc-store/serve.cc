#include <unistd.h>

#include <cstdlib>

#include "base/json.h"
#include "base/log.h"
#include "cmd/mc-store/verbs.h"
#include "http/server.h"
#include "io/signals.h"
#include "rpc/server.h"
#include "store/client/async_client.h"
#include "store/metadata/table.h"
#include "store/node/node.h"
#include "store/node/opening.h"
#include "store/offload/file_storage.h"
#include "telemetry/step_spans.h"

namespace mc::store {
namespace {

struct ServeOptions {
  std::string listen = "127.0.0.1:5570";
  std::string http = "127.0.0.1:5571";
  std::string name;
  NodeOptions node;
  TierOptions tier;
  bool promote = true;
  Duration drain{};
  xfer::EngineOptions engine;
  telemetry::OtlpOptions otlp;
  DaemonOptions daemon;
  void describe(OptionList& v) {
    v("listen", listen, "control address; port 0 takes a free one");
    v("http", http, "address of /metrics, /live, /ready, /health and /state");
    v("name", name, "unique name of this node; empty: store-PID");
    node.describe(v);
    tier.describe(v);
    v("ssd-promote", promote, "take back into memory what is read from the disk");
    v("drain-on-exit", drain,
      "how long to move objects to other nodes before it ends; 0: end at once");
    engine.describe(v);
    otlp.describe(v);
    daemon.describe(v);
  }
};

std::string state_text(const StoreNode* node, const FileStorage* tier) {
  const bool open = node != nullptr;
  Json json = {{"mounted", open && node->mounted()},
               {"epoch", open ? node->epoch() : 0},
               {"capacity", open ? node->layout().total() : 0},
               {"objects", open ? node->directory().objects() : 0},
               {"bytes", open ? node->directory().bytes() : 0}};
  if (tier != nullptr) {
    const ssd::Usage u = tier->usage();
    json["ssd"] = {{"mounted", tier->mounted()},
                   {"capacity", u.capacity},
                   {"used", u.used},
                   {"objects", u.objects},
                   {"bytes", u.object_bytes},
                   {"damaged", tier->scan().damaged_count},
                   {"trouble", tier->trouble()}};
  }
  return dump_json(json) + "\n";
}

// An object on a disk, as it is put back into memory at `now_s`: its tenant's, and kept as long as
// it was to be.
std::pair<ObjectKey, PutAs> as_put(const ssd::Stored& object, uint64_t now_s) {
  PutAs as;
  as.promote = true;
  const size_t nul = object.key.find('\0');
  if (nul != std::string::npos) as.tenant = object.key.substr(0, nul);
  const bool context = object.klass == static_cast<uint32_t>(ObjectClass::kContext);
  if (context && (object.keep_until_s == 0 || object.keep_until_s > now_s)) {
    as.config.cls = "context";
    if (object.keep_until_s > 0) as.config.ttl = std::chrono::seconds(object.keep_until_s - now_s);
  }
  return {nul == std::string::npos ? object.key : object.key.substr(nul + 1), std::move(as)};
}

// What is got beside the loop: memory and what its files hold, then what lies on the disk.
struct Prepared {
  PreparedNode node;
  PreparedTier tier;
};

Result<Prepared> prepare(xfer::Engine& engine, const ServeOptions& options, const Clock& clock) {
  Prepared out;
  MC_TRY(out.node, prepare_node(engine, options.name, options.node, clock));
  if (options.tier.folder.empty()) return out;
  log_info("ssd", "scanning %s", options.tier.folder.c_str());
  MC_TRY(out.tier, prepare_tier(engine, options.node, options.tier, clock));
  return out;
}

std::string starting_text(const ServeOptions& options) {
  std::string memory;
  for (const std::string& segment : options.node.segments)
    memory += (memory.empty() ? "" : ", ") + segment;
  if (memory.empty()) memory = rounded_bytes_text(options.node.size.n);
  std::string out = "starting: finds " + options.node.master;
  if (options.tier.folder.empty()) return out + " and allocates " + memory;
  return out + ", allocates " + memory + " and scans " + options.tier.folder;
}

// The tier of a node, and the client through which it brings objects back into memory.
struct Disk {
  std::unique_ptr<FileStorage> tier;
  std::unique_ptr<AsyncClient> client;
};

Result<Disk> open_disk(io::Loop& loop, xfer::Engine& engine, StoreNode& node, rpc::Server& server,
                       const ServeOptions& options, Metrics& metrics, PreparedTier prepared) {
  Disk disk;
  MC_TRY(disk.tier, FileStorage::open(loop, engine, node, options.node, options.tier, metrics,
                                      std::move(prepared)));
  node.announce_tier();
  disk.tier->serve(server);
  ClientOptions client;
  client.master = options.node.master;
  client.prefer = options.name;
  client.timeout = options.tier.lease;
  MC_TRY(disk.client, AsyncClient::open(loop, engine, client, metrics, 1));
  disk.tier->on_promote(
      [to = disk.client.get(), tier = disk.tier.get(), &loop](
          const ssd::Stored& object, std::span<const std::byte> value, FileStorage::Promoted done) {
        auto [key, as] = as_put(object, tier->keep_clock().now_s(loop.now()));
        to->put(std::move(key), value, std::move(as),
                [done = std::move(done)](const Result<PutOutcome>& outcome) {
                  if (!outcome) return done(fail(outcome.error()));
                  if (*outcome == PutOutcome::kNotAdmitted)
                    return done(fail(Code::kDenied, "its class is not kept in memory"));
                  done(*outcome == PutOutcome::kStored);
                });
      },
      options.promote);
  return disk;
}

void answer_page(const http::Exchange& x, const Metrics& metrics, const StoreNode* node,
                 const FileStorage* tier, const std::string& starting) {
  const std::string state = state_text(node, tier);
  if (http::serve_common(x, metrics, node != nullptr ? node->not_ready() : starting, state)) return;
  if (x.request().path == "/state")
    x.reply(200, "application/json", state);
  else
    x.reply(404, "text/plain", "no such page: try /live, /ready, /health, /metrics or /state\n");
}

Endpoints endpoints_of(const ServeOptions& options, const StoreNode& node,
                       const rpc::Server& server, const http::Server& pages,
                       const xfer::Engine& engine) {
  Endpoints me;
  me.name = options.name;
  me.role = "store";
  me.epoch = node.epoch();
  me.control = server.address();
  me.http = pages.address();
  me.data = engine.data_addresses();
  return me;
}

// Until the tier serves them readers go to another disk.
void refuse_loads(rpc::Server& server, const std::string& why) {
  server.on<LoadObjects>([why](const LoadObjects&, const rpc::Call&) -> Result<Loaded> {
    return fail(Code::kUnavailable, "this node is %s", why.c_str());
  });
}

Result<int> serve(ServeOptions options) {
  MC_TRY_(options.daemon.load());
  if (options.name.empty()) options.name = "store-" + std::to_string(::getpid());
  SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<telemetry::Tracer> tracer;  // outlives the answers that wait in the loop
  io::Loop loop(clock);
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<Opening<Prepared>> opening;
  std::unique_ptr<StoreNode> node;
  Disk disk;
  io::Signals signals(loop, [&](int n) {
    if (n > 1 || node == nullptr) return loop.stop();
    const auto leave = [&] { node->stop([&] { loop.stop(); }); };
    node->drain(options.drain, [&, leave] {
      if (disk.tier == nullptr) return leave();
      disk.tier->flush(leave);
    });
  });
  // Its thread starts when signals are the loop's.
  MC_TRY(tracer, telemetry::Tracer::open(options.otlp, "mc-store", options.name, clock, metrics));
  options.engine.node = options.name;
  MC_TRY(engine, xfer::Engine::open(clock, options.engine, metrics));
  MC_TRY(auto server, rpc::Server::open(loop, options.listen, metrics));
  xfer::serve(*engine, *server);
  if (tracer != nullptr)
    server->trace_calls([&](const std::string& trace_id) {
      return telemetry::answer_step(*tracer, trace_id, clock);
    });
  if (options.tier.folder.empty() && options.tier.size.n > 0)
    return fail(Code::kInvalid, "--ssd-size without --ssd: say which folder");
  MC_TRY(auto pages, http::Server::open(loop, options.http, {}, [&](const http::Exchange& x) {
           answer_page(x, metrics, node.get(), disk.tier.get(), opening->what());
         }));
  Result<> outcome;
  const auto open = [&](Prepared prepared) -> Result<> {
    MC_TRY(node, StoreNode::open(loop, *engine, options.name, server->address(), options.node,
                                 metrics, std::move(prepared.node)));
    node->on_mounted([&, first = true]() mutable {
      if (!std::exchange(first, false)) return;
      outcome = options.daemon.ready(endpoints_of(options, *node, *server, *pages, *engine));
      if (!outcome) loop.stop();
    });
    if (options.tier.folder.empty()) return {};
    MC_TRY(disk,
           open_disk(loop, *engine, *node, *server, options, metrics, std::move(prepared.tier)));
    return {};
  };
  opening = std::make_unique<Opening<Prepared>>(
      loop, starting_text(options), [&] { return prepare(*engine, options, clock); },
      [&](Result<Prepared> prepared) {
        outcome = prepared ? open(std::move(*prepared)) : Result<>(fail(prepared.error()));
        if (!outcome) loop.stop();
      });
  if (!options.tier.folder.empty()) refuse_loads(*server, opening->what());
  log_info("store", "%s", opening->what().c_str());
  MC_TRY_(loop.run());
  options.daemon.stopping();
  // Neither part can be cut short, nobody knows the node yet, and its files stand a kill.
  if (opening->running()) std::quick_exit(0);
  disk.client.reset();  // its puts are of staging memory
  disk.tier.reset();
  node.reset();
  MC_TRY_(std::move(outcome));
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
