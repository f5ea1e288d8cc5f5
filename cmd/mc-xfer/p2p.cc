// mc-xfer publish, pull, list, unpublish: the P2P store.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <optional>
#include <set>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "cmd/daemon.h"
#include "cmd/mc-xfer/verbs.h"
#include "io/signals.h"
#include "p2p/swarm/node.h"
#include "rpc/client.h"
#include "rpc/server.h"

namespace mc::xfer {
namespace {

// A process that is a source.
struct SourceOptions {
  std::string listen = "127.0.0.1:0", advertise;
  uint32_t slots = 2;
  EngineOptions engine;
  DaemonOptions daemon;
  void describe(OptionList& v) {
    v("listen", listen, "control address; port 0 takes a free one");
    v("advertise", advertise, "control address as peers reach it; empty: where it listens");
    v("slots", slots, "uploads at a time");
    engine.describe(v);
    daemon.describe(v);
  }
};

struct Source {
  Source() : loop(clock) {}
  SteadyClock clock;
  io::Loop loop;
  Metrics metrics;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<p2p::SwarmMember> node;
  Endpoints me;

  Result<> open(const SourceOptions& o, const char* verb, uint32_t parallel) {
    MC_TRY_(o.daemon.load());
    EngineOptions options = o.engine;
    options.node = strf("mc-xfer-%s-%d-%llx", verb, static_cast<int>(::getpid()),
                        static_cast<unsigned long long>(fresh_seed() & 0xffff));
    MC_TRY(engine, Engine::open(clock, options, metrics));
    MC_TRY(server, rpc::Server::open(loop, o.listen, metrics));
    xfer::serve(*engine, *server);
    p2p::SwarmMember::Config config;
    config.uplink.slots = std::max(1u, o.slots);
    config.parallel = parallel;
    config.seed = fresh_seed();
    me.name = options.node;
    me.role = "xfer";
    me.epoch = engine->generation().n;
    me.control = o.advertise.empty() ? server->address() : o.advertise;
    me.data = engine->data_addresses();
    node = std::make_unique<p2p::SwarmMember>(*engine, clock, config, me.control);
    node->serve(*server);
    return {};
  }
};

Json to_json(const p2p::SetInfo& s, const std::string& source) {
  return {{"source", source},
          {"name", s.name},
          {"id", strf("%016llx", static_cast<unsigned long long>(s.id))},
          {"bytes", s.bytes},
          {"files", s.files},
          {"shards", s.shards},
          {"have", s.have},
          {"sources", s.sources}};
}

void print(const p2p::SetInfo& s, bool json, const std::string& source) {
  if (json)
    std::printf("%s\n", dump_json(to_json(s, source)).c_str());
  else
    std::printf("%-21s %-24s %10s %6llu files %7llu of %llu shards, %llu other sources\n",
                source.c_str(), s.name.c_str(), rounded_bytes_text(s.bytes).c_str(),
                static_cast<unsigned long long>(s.files), static_cast<unsigned long long>(s.have),
                static_cast<unsigned long long>(s.shards),
                static_cast<unsigned long long>(s.sources));
  std::fflush(stdout);
}

// ---- publish

struct PublishOptions {
  std::string name;
  std::vector<std::string> paths;
  Bytes shard{64 * kMiB};
  SourceOptions source;
  void describe(OptionList& v) {
    v("shard", shard, "bytes a shard, 64 KiB to 1 GiB");
    source.describe(v);
  }
};

Result<int> publish(const PublishOptions& o, const Context& context) {
  Source source;
  io::Signals signals(source.loop, [&](int) { source.loop.stop(); });
  MC_TRY_(source.open(o.source, "publish", 1));
  MC_TRY(const auto info, source.node->publish(o.name, o.paths, o.shard));
  print(info, context.json, source.me.control);
  MC_TRY_(o.source.daemon.ready(source.me));
  MC_TRY_(source.loop.run());
  source.node->leave();
  o.source.daemon.stopping();
  return 0;
}

// ---- pull

struct PullOptions {
  p2p::PullRequest request;
  bool serve = false, progress = false;
  uint32_t parallel = 4;
  SourceOptions source;
  void describe(OptionList& v) {
    v("from", request.from, "control addresses of sources; one that lives is enough");
    v("to", request.folder, "folder to put the files in");
    v("serve", serve, "stay a source until SIGTERM");
    v("patience", request.patience, "give up when no shard came for this long");
    v("parallel", parallel, "shards at a time");
    v("progress", progress, "show progress even when stderr is not a terminal");
    source.describe(v);
  }
};

void print(const p2p::PullReport& r, bool json) {
  if (json) {
    Json from = Json::object();
    for (const auto& [address, bytes] : r.from) from[address] = bytes;
    std::printf("%s\n", dump_json({{"name", r.name},
                                   {"bytes", r.bytes},
                                   {"kept", r.kept},
                                   {"shards", r.shards},
                                   {"seconds", r.seconds},
                                   {"from", from}})
                            .c_str());
  } else {
    std::printf("%s: %s in %.3f s from %zu sources", r.name.c_str(),
                rounded_bytes_text(r.bytes).c_str(), r.seconds, r.from.size());
    if (r.kept > 0) std::printf(", %s of it there before", rounded_bytes_text(r.kept).c_str());
    std::printf("\n");
  }
  std::fflush(stdout);
}

Result<int> pull(PullOptions& o, const Context& context) {
  if (o.request.folder.empty()) return fail(Code::kInvalid, "--to is missing: which folder?");
  Source source;
  std::atomic<bool> stop{false};
  io::Signals signals(source.loop, [&](int) {
    stop.store(true);
    source.loop.stop();
  });
  MC_TRY_(source.open(o.source, "pull", o.parallel));
  const bool shown = o.progress || ::isatty(2) != 0;
  if (shown)
    o.request.progress = [](uint64_t done, uint64_t total) {
      std::fprintf(
          stderr, "\r%s of %s (%.0f %%)   ", rounded_bytes_text(done).c_str(),
          rounded_bytes_text(total).c_str(),
          total == 0 ? 100. : 100. * static_cast<double>(done) / static_cast<double>(total));
    };
  Result<p2p::PullReport> report = fail(Code::kInternal, "not run");
  std::thread puller([&] {  // the loop serves meanwhile
    report = source.node->pull(o.request, stop);
    if (shown) std::fprintf(stderr, "\r\033[K");
    if (!report || !o.serve) {
      source.loop.stop();
      return;
    }
    source.loop.post([&] {
      print(*report, context.json);
      if (auto ready = o.source.daemon.ready(source.me); !ready) source.loop.stop();
    });
  });
  const auto ran = source.loop.run();
  stop.store(true);
  puller.join();
  source.node->leave();
  MC_TRY_(ran);
  if (!report) return fail(report.error());
  if (o.serve)
    o.source.daemon.stopping();
  else
    print(*report, context.json);
  return 0;
}

// ---- list and unpublish

struct AskOptions {
  std::string name;
  std::vector<std::string> from;
  std::string cluster_key;
  Duration timeout = std::chrono::seconds(2);
  void describe(OptionList& v) {
    v("from", from, "control addresses of sources");
    v("timeout", timeout, "give up on a source after this long");
    v("cluster-key", cluster_key, "file with the cluster's secret");
  }
};

template <class M>
Result<typename M::Reply> ask(const AskOptions& o, const std::string& address, const M& message,
                              const Clock& clock) {
  MC_TRY(auto client, rpc::SyncClient::connect(address, clock));
  return client->call(message, o.timeout);
}

Result<int> list(const AskOptions& o, const Context& context) {
  MC_TRY_(rpc::load_cluster_key(o.cluster_key));
  if (o.from.empty()) return fail(Code::kInvalid, "--from is missing: which source?");
  const SteadyClock clock;
  std::optional<Error> silent;  // the others are listed all the same
  for (const std::string& address : o.from) {
    const auto sets = ask(o, address, p2p::ListSets{o.name}, clock);
    if (!sets) {
      if (silent) log_warn("xfer", "%s", sets.error().what.c_str());
      if (!silent) silent = sets.error();
      continue;
    }
    for (const p2p::SetInfo& s : sets->sets) print(s, context.json, address);
  }
  if (silent) return fail(*silent);
  return 0;
}

// Tells every source that any of them knows.
Result<int> unpublish(const AskOptions& o, const Context&) {
  MC_TRY_(rpc::load_cluster_key(o.cluster_key));
  if (o.from.empty()) return fail(Code::kInvalid, "--from is missing: which source?");
  const SteadyClock clock;
  std::vector<std::string> todo = o.from;
  std::set<std::string> notified;
  size_t dropped = 0;
  Error first;
  while (!todo.empty()) {
    const std::string address = todo.back();
    todo.pop_back();
    if (!notified.insert(address).second) continue;
    auto set = ask(o, address, p2p::DropSet{o.name}, clock);
    if (!set && first.what.empty()) first = set.error();
    if (!set) continue;
    ++dropped;
    todo.insert(todo.end(), set->sources.begin(), set->sources.end());
  }
  if (dropped == 0) return fail(first);
  std::printf("%s: dropped by %zu sources\n", o.name.c_str(), dropped);
  return 0;
}

}  // namespace

void add_p2p(Program& program) {
  program.verb<PublishOptions>(
      "publish", "offer files to many nodes, until SIGTERM", [](Verb& v, PublishOptions& o) {
        v.positional("NAME", o.name, "name of the set");
        v.positional_many("PATH", o.paths, "files, and folders with all below them");
        v.example("mc-xfer publish llama-v7 weights/ --listen 127.0.0.1:5610",
                  "offer a folder of weights");
        v.run_with([&o](Context& context) { return publish(o, context); });
      });
  program.verb<PullOptions>(
      "pull", "fetch a published set from all nodes that have parts of it",
      [](Verb& v, PullOptions& o) {
        v.positional("NAME", o.request.name, "name of the set");
        v.example("mc-xfer pull llama-v7 --from 127.0.0.1:5610 --to weights --serve",
                  "fetch a set, and stay a source of it");
        v.run_with([&o](Context& context) { return pull(o, context); });
      });
  program.verb<AskOptions>("list", "sets that sources have", [](Verb& v, AskOptions& o) {
    v.positional("PREFIX", o.name, "names that begin so", false);
    v.run_with([&o](Context& context) { return list(o, context); });
  });
  program.verb<AskOptions>("unpublish", "make all sources drop a set", [](Verb& v, AskOptions& o) {
    v.positional("NAME", o.name, "name of the set");
    v.run_with([&o](Context& context) { return unpublish(o, context); });
  });
}

}  // namespace mc::xfer
