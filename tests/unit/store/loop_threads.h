// A master and nodes, each on a loop of its own thread that can stand still, with real sockets and
// the real transfer engine.
#pragma once
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>

#include "rpc/server.h"
#include "store/node/node.h"
#include "store/service/master_service.h"

namespace mc::store {

using namespace std::chrono_literals;

struct LoopThread {  // a loop that can stand still, as that of a stopped process
  void start() {
    thread = std::thread([this] { (void)loop.run(); });
  }
  void halt() {
    if (!thread.joinable()) return;
    loop.stop();
    thread.join();
  }
  ~LoopThread() { halt(); }
  SteadyClock clock;
  Metrics metrics;
  io::Loop loop{clock};
  std::thread thread;
};

struct OneMaster : LoopThread {
  explicit OneMaster(Duration rebuild_wait = 1500ms) {
    MasterServiceOptions options;
    options.master.rebuild_wait = rebuild_wait;
    options.listen = options.http = "127.0.0.1:0";
    options.master.suspect_after = options.master.client_ttl = 60s;
    auto opened = MasterService::open(loop, options, 1'700'000'000, 1, metrics);
    REQUIRE(opened);
    service = std::move(*opened);
    start();
  }
  ~OneMaster() { halt(); }
  std::unique_ptr<MasterService> service;
};

struct OneNode : LoopThread {
  OneNode(const std::string& name, const std::string& master) {
    xfer::EngineOptions e;
    e.node = name;
    auto opened_engine = xfer::Engine::open(clock, e, metrics);
    REQUIRE(opened_engine);
    engine = std::move(*opened_engine);
    auto opened_server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(opened_server);
    server = std::move(*opened_server);
    xfer::serve(*engine, *server);
    NodeOptions n;
    n.master = master;
    n.size = Bytes{16 * kMiB};
    auto opened_node = StoreNode::open(loop, *engine, name, server->address(), n, metrics);
    REQUIRE(opened_node);
    node = std::move(*opened_node);
    for (int i = 0; i < 1000 && !node->mounted(); ++i) REQUIRE(loop.turn(10ms));
    REQUIRE(node->mounted());
    start();
  }
  ~OneNode() { halt(); }
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<StoreNode> node;
};

}  // namespace mc::store
