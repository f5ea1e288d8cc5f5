// A KV store for the pairs of pair.h, with real sockets and bytes.
#pragma once
#include "pair.h"
#include "store/node/node.h"
#include "store/offload/file_storage.h"
#include "store/service/master_service.h"

namespace mc::serve {

// A master and one node, on the loop of the test.
struct Store {
  // `disk`: a folder to which the node writes all that it gets; empty: it has no disk.
  Store(io::Loop& loop, uint64_t bytes, const std::string& disk = {}) {
    store::MasterServiceOptions options;
    options.listen = options.http = "127.0.0.1:0";
    options.master.rebuild_wait = 0s;  // what it does not know is absent
    if (!disk.empty()) options.master.offload = "eager";
    auto opened = store::MasterService::open(loop, options, 1'700'000'000, 1, metrics);
    REQUIRE(opened);
    master = std::move(*opened);
    xfer::EngineOptions e;
    e.node = "s0";
    auto opened_engine = xfer::Engine::open(loop.clock(), e, metrics);
    REQUIRE(opened_engine);
    engine = std::move(*opened_engine);
    auto opened_server = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(opened_server);
    server = std::move(*opened_server);
    xfer::serve(*engine, *server);
    store::NodeOptions n;
    n.master = master->control();
    n.size = Bytes{bytes};
    auto opened_node = store::StoreNode::open(loop, *engine, "s0", server->address(), n, metrics);
    REQUIRE(opened_node);
    node = std::move(*opened_node);
    for (int i = 0; i < 1000 && !node->mounted(); ++i) REQUIRE(loop.turn(10ms));
    REQUIRE(node->mounted());
    if (disk.empty()) return;
    store::TierOptions t;
    t.folder = disk;
    t.size = Bytes{64 * kMiB};
    t.staging = Bytes{4 * kMiB};
    t.flush = 10ms;
    auto opened_tier = store::FileStorage::open(loop, *engine, *node, n, t, metrics);
    REQUIRE_MESSAGE(opened_tier.has_value(), opened_tier.error().what);
    tier = std::move(*opened_tier);
    node->announce_tier();
    tier->serve(*server);
    for (int i = 0; i < 1000 && !tier->mounted(); ++i) REQUIRE(loop.turn(10ms));
    REQUIRE(tier->mounted());
  }
  Metrics metrics;
  std::unique_ptr<store::MasterService> master;
  std::unique_ptr<xfer::Engine> engine;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<store::StoreNode> node;
  std::unique_ptr<store::FileStorage> tier;
};

// A folder that is gone with the object.
struct DiskFolder {
  DiskFolder() { std::filesystem::remove_all(path); }
  ~DiskFolder() { std::filesystem::remove_all(path); }
  const std::string path =
      std::filesystem::temp_directory_path() / ("mc-kv-disk-" + std::to_string(::getpid()));
};

// Waits until that many blocks were put by the prefill worker, and none is pinned any more.
inline bool published(Pair& pair, uint64_t blocks) {
  return pair.until([&] {
    return pair.p_metrics.counter("mc_engine_pool_blocks_stored_total", "").value() == blocks &&
           pair.prefill->cache().counts().used == 0;
  });
}

}  // namespace mc::serve
