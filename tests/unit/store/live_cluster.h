// A master, a node and clients in this process, with real sockets and the real transfer engine.
#pragma once
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "rpc/server.h"
#include "store/client/client.h"
#include "store/node/node.h"
#include "store/service/master_service.h"

namespace mc::store {

using namespace std::chrono_literals;

inline std::vector<std::byte> noise(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> out(n);
  for (auto& b : out) b = static_cast<std::byte>(random.next() & 0xff);
  return out;
}

// A master and a node on a loop of their own thread.
struct Cluster {
  explicit Cluster(uint64_t bytes, std::vector<std::string> transports = {"shm", "tcp"},
                   const std::string& listen = "127.0.0.1:0")
      : loop(clock) {
    if (!open_master(listen, 1'700'000'000)) return;  // the port is another process's
    xfer::EngineOptions e;
    e.node = "n";
    e.transports = std::move(transports);
    auto opened_engine = xfer::Engine::open(clock, e, metrics);
    REQUIRE(opened_engine);
    engine = std::move(*opened_engine);
    auto opened_server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(opened_server);
    server = std::move(*opened_server);
    xfer::serve(*engine, *server);
    NodeOptions n;
    n.master = master->control();
    n.size = Bytes{bytes};
    auto opened_node = StoreNode::open(loop, *engine, "n", server->address(), n, metrics);
    REQUIRE(opened_node);
    node = std::move(*opened_node);
    node->on_mounted([this] { mounted = true; });
    for (int i = 0; i < 1000 && !mounted; ++i) REQUIRE(loop.turn(10ms));
    REQUIRE(mounted);
    thread = std::thread([this] { (void)loop.run(); });
  }
  ~Cluster() {
    loop.stop();
    if (thread.joinable()) thread.join();
  }
  bool open_master(const std::string& listen, uint64_t epoch) {
    MasterServiceOptions options;
    options.listen = listen;
    options.http = "127.0.0.1:0";
    options.master.lease_ttl = 50ms;
    options.master.rebuild_wait = 0s;  // what it does not know is absent
    auto opened = MasterService::open(loop, options, epoch, 1, metrics);
    if (opened) master = std::move(*opened);
    return opened.has_value();
  }
  // Another master takes over at the same address, and the node mounts there. False: another
  // process took the port meanwhile.
  bool replace_master(uint64_t epoch) {
    loop.stop();
    thread.join();
    const std::string at = master->control();
    master.reset();
    mounted = false;
    if (!open_master(at, epoch)) return false;
    const Time end = clock.now() + 60s;
    while (!mounted && clock.now() < end) REQUIRE(loop.turn(10ms));
    REQUIRE(mounted);
    thread = std::thread([this] { (void)loop.run(); });
    return true;
  }
  SteadyClock clock;
  Metrics metrics;
  io::Loop loop;
  std::unique_ptr<MasterService> master;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<StoreNode> node;
  bool mounted = false;
  std::thread thread;
};

struct Caller {
  explicit Caller(const Cluster& cluster, Duration put_wait = 100ms) {
    auto e = xfer::Engine::open(clock, {}, metrics);
    REQUIRE(e);
    engine = std::move(*e);
    options.master = cluster.master->control();
    options.verify = "always";
    options.put_wait = put_wait;
    auto c = Client::open(*engine, clock, options, metrics);
    REQUIRE(c);
    client = std::move(*c);
  }
  SteadyClock clock;
  Metrics metrics;
  ClientOptions options;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<Client> client;
};

}  // namespace mc::store
