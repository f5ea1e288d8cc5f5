// Master, node with a disk, and client in one process: more data than memory, restarts, damage, and
// leases that end.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rpc/server.h"
#include "ssd_values.h"
#include "store/client/client.h"
#include "store/offload/file_storage.h"
#include "store/service/master_service.h"

namespace mc::store {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kValue = 300'000;

struct Folder {
  Folder() { std::filesystem::remove_all(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path =
      (std::filesystem::temp_directory_path() / ("mc-tier-" + std::to_string(::getpid()))).string();
};

struct Setup {
  std::string folder, backend = "bucket", offload = "on-evict";
  uint64_t memory = 4 * kMiB;
  Duration lease = 5s;
  std::string transport = "shm";
  Duration flush = 10ms;
};

struct World {
  explicit World(const Setup& setup) : loop(clock) {
    MasterServiceOptions m;
    m.listen = m.http = "127.0.0.1:0";
    m.master.lease_ttl = 20ms;
    m.master.rebuild_wait = 0s;  // what it does not know is absent
    m.master.offload = setup.offload;
    m.master.on_slow_offload = "wait";
    auto opened = MasterService::open(loop, m, 1'700'000'000, 1, metrics);
    REQUIRE(opened);
    master = std::move(*opened);
    xfer::EngineOptions options;
    options.node = "n";
    options.transports = {setup.transport};
    auto e = xfer::Engine::open(clock, options, metrics);
    REQUIRE(e);
    engine = std::move(*e);
    auto s = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(s);
    server = std::move(*s);
    xfer::serve(*engine, *server);
    NodeOptions n;
    n.master = master->control();
    n.size = Bytes{setup.memory};
    n.heartbeat = 50ms;
    auto opened_node = StoreNode::open(loop, *engine, "n", server->address(), n, metrics);
    REQUIRE(opened_node);
    node = std::move(*opened_node);
    TierOptions t;
    t.folder = setup.folder;
    t.size = Bytes{256 * kMiB};
    t.backend = setup.backend;
    t.flush = setup.flush;
    t.lease = setup.lease;
    t.staging = Bytes{4 * kMiB};
    auto opened_tier = FileStorage::open(loop, *engine, *node, n, t, metrics);
    REQUIRE_MESSAGE(opened_tier.has_value(), opened_tier.error().what);
    tier = std::move(*opened_tier);
    node->announce_tier();
    tier->serve(*server);
    for (int i = 0; i < 2000 && !tier->mounted(); ++i) REQUIRE(loop.turn(5ms));
    REQUIRE(tier->mounted());
    thread = std::thread([this] { (void)loop.run(); });
    options.node = "client";
    auto ce = xfer::Engine::open(clock, options, client_metrics);
    REQUIRE(ce);
    client_engine = std::move(*ce);
    ClientOptions k;
    k.master = master->control();
    k.put_wait = 5s;
    auto c = Client::open(*client_engine, clock, k, client_metrics);
    REQUIRE(c);
    client = std::move(*c);
  }
  ~World() {
    loop.stop();
    thread.join();
  }
  template <class F>
  bool within(Duration limit, const F& f) {
    const Time end = clock.now() + limit;
    while (!f()) {
      if (clock.now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  size_t tier_gathered() {
    std::atomic<size_t> n{SIZE_MAX};
    if (loop.post([&] { n = tier->gathered(); }))
      while (n == SIZE_MAX) std::this_thread::yield();
    return n;
  }
  ClusterStat stat() { return client->stat().value_or(ClusterStat{}); }
  Result<PutOutcome> put(int i) {
    const std::string value = ssd::value_of(key(i), 1, kValue);
    return client->put(key(i), std::as_bytes(std::span(value)));
  }
  // "right", "wrong" or the error.
  std::string get(int i) {
    const auto value = client->get(key(i));
    if (!value) return name(value.error().code);
    const std::string want = ssd::value_of(key(i), 1, kValue);
    return std::equal(value->begin(), value->end(), std::as_bytes(std::span(want)).begin(),
                      std::as_bytes(std::span(want)).end())
               ? "right"
               : "wrong";
  }
  static std::string key(int i) { return "k" + std::to_string(i); }

  SteadyClock clock;
  Metrics metrics, client_metrics;
  io::Loop loop;
  std::unique_ptr<MasterService> master;
  std::unique_ptr<xfer::Engine> engine, client_engine;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<StoreNode> node;
  std::unique_ptr<FileStorage> tier;
  std::unique_ptr<Client> client;
  std::thread thread;
};

TEST_CASE("what memory cannot hold goes to the disk and is read from there") {
  for (const char* backend : {"bucket", "file", "offset"}) {
    CAPTURE(backend);
    const Folder folder;
    Setup setup;
    setup.folder = folder.path;
    setup.backend = backend;
    setup.transport = std::string(backend) == "file" ? "tcp" : "shm";
    World w(setup);
    constexpr int kObjects = 40;  // three times the memory
    for (int i = 0; i < kObjects; ++i) {
      const auto stored = w.put(i);
      CHECK_MESSAGE(stored.has_value(), stored.error().what);
    }
    for (int i = 0; i < kObjects; ++i) CHECK_MESSAGE(w.get(i) == "right", i);
    CHECK(w.stat().disk_objects >= 25);
    const auto all = w.client->list("", "", 1000);
    REQUIRE(all);
    CHECK(all->items.size() == kObjects);
    CHECK(std::is_sorted(all->items.begin(), all->items.end(),
                         [](const auto& a, const auto& b) { return a.key < b.key; }));
    // A key that only the disk has is not put again, and is gone when it is removed.
    CHECK(w.put(0).value_or(PutOutcome::kStored) == PutOutcome::kExisted);
    CHECK(w.client->remove({w.key(0)}, true)[0]);
    CHECK(w.get(0) == "not-found");
    CHECK(w.client->exists({w.key(0), w.key(1)}).value_or(std::vector<bool>{}) ==
          std::vector<bool>{false, true});
  }
}

TEST_CASE("a restart serves what was on the disk, and only that") {
  const Folder folder;
  Setup setup;
  setup.folder = folder.path;
  setup.offload = "eager";
  setup.memory = 16 * kMiB;
  {
    World w(setup);
    for (int i = 0; i < 10; ++i) CHECK(w.put(i));
    CHECK(w.within(30s, [&] { return w.stat().disk_objects == 10; }));
    CHECK(w.client->remove({w.key(3)}, true)[0]);
  }
  World w(setup);
  CHECK(w.tier->scan().objects == 9);
  for (int i = 0; i < 10; ++i) CHECK(w.get(i) == (i == 3 ? "not-found" : "right"));
}

// It was reported gone, and the next start found it again.
TEST_CASE("a removal that the disk refuses is an error, and what was removed stays away") {
  const Folder folder;
  Setup setup;
  setup.folder = folder.path;
  setup.offload = "eager";
  setup.memory = 16 * kMiB;
  setup.flush = 500ms;  // they share a bucket
  {
    World w(setup);
    for (int i = 0; i < 3; ++i) CHECK(w.put(i));
    CHECK(w.within(30s, [&] { return w.stat().disk_objects == 3; }));
    // A bucket's table is written to a temporary file first: there a folder is in the way.
    std::vector<std::string> in_the_way;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path))
      if (entry.path().extension() == ".meta") in_the_way.push_back(entry.path().string() + ".tmp");
    for (const std::string& path : in_the_way) std::filesystem::create_directories(path + "/full");
    for (int i = 0; i < 2; ++i) {
      const auto removed = w.client->remove({w.key(1)}, true)[0];
      REQUIRE(!removed.has_value());
      CHECK(removed.error().code == Code::kUnavailable);
      CHECK(removed.error().what.find("node 'n'") != std::string::npos);
      CHECK(w.get(1) == "not-found");
    }
    CHECK(w.within(30s, [&] {
      const auto stat = w.stat();
      return !stat.tiers.empty() && !stat.tiers[0].trouble.empty();
    }));
    for (const std::string& path : in_the_way) std::filesystem::remove_all(path);
    CHECK(w.within(30s, [&] { return w.client->remove({w.key(1)}, true)[0].has_value(); }));
  }
  World w(setup);
  for (int i = 0; i < 3; ++i) CHECK(w.get(i) == (i == 1 ? "not-found" : "right"));
}

TEST_CASE("of objects that are removed together, one that the disk refuses is an error alone") {
  const Folder folder;
  Setup setup;
  setup.folder = folder.path;
  setup.backend = "file";
  setup.offload = "eager";
  setup.memory = 16 * kMiB;
  World w(setup);
  for (int i = 0; i < 3; ++i) CHECK(w.put(i));
  CHECK(w.within(30s, [&] { return w.stat().disk_objects == 3; }));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path))
    if (entry.is_regular_file() && entry.file_size() >= kValue) files.push_back(entry.path());
  REQUIRE(files.size() == 3);
  std::filesystem::remove(files[0]);
  std::filesystem::create_directories(files[0] / "full");  // no file: it cannot be unlinked
  int refused = 0;
  for (const auto& removed : w.client->remove({w.key(0), w.key(1), w.key(2)}, true)) {
    if (removed) continue;
    ++refused;
    CHECK(removed.error().code == Code::kUnavailable);
  }
  CHECK(refused == 1);
  CHECK(!std::filesystem::exists(files[1]));
  CHECK(!std::filesystem::exists(files[2]));
}

TEST_CASE("a node that ends writes the gathered objects first") {
  const Folder folder;
  Setup setup;
  setup.folder = folder.path;
  setup.offload = "eager";
  setup.memory = 16 * kMiB;
  setup.flush = 1h;
  {
    World w(setup);
    for (int i = 0; i < 6; ++i) CHECK(w.put(i));
    // The last job was told before the end.
    CHECK(w.within(30s, [&] { return w.stat().offloading == 6 * kValue; }));
    CHECK(w.within(30s, [&] { return w.tier_gathered() == 6; }));
    std::atomic<bool> flushed{false};
    CHECK(w.loop.post([&] { w.tier->flush([&] { flushed = true; }); }));
    CHECK(w.within(30s, [&] { return flushed.load(); }));
    CHECK(w.stat().disk_objects == 6);
  }
  World w(setup);
  CHECK(w.tier->scan().objects == 6);
}

TEST_CASE("the folder shrinks once most of what was written together is removed") {
  const Folder folder;
  Setup setup;
  setup.folder = folder.path;
  setup.offload = "eager";
  setup.memory = 16 * kMiB;
  setup.flush = 500ms;  // they share a bucket
  World w(setup);
  for (int i = 0; i < 10; ++i) CHECK(w.put(i));
  CHECK(w.within(30s, [&] { return w.stat().disk_objects == 10; }));
  for (int i = 1; i < 10; ++i) CHECK(w.client->remove({w.key(i)}, true)[0]);
  const auto bytes = [&] {
    uint64_t n = 0;
    std::error_code gone;  // files come and go meanwhile
    for (const auto& entry : std::filesystem::directory_iterator(folder.path))
      if (const uint64_t size = entry.file_size(gone); !gone) n += size;
    return n;
  };
  CHECK(w.within(30s, [&] { return bytes() < 3 * kValue; }));
  CHECK(w.get(0) == "right");
}

TEST_CASE("a value damaged on the disk is an error and then gone, never wrong bytes") {
  const Folder folder;
  Setup setup;
  setup.folder = folder.path;
  setup.offload = "eager";
  setup.memory = 16 * kMiB;
  {
    World w(setup);
    for (int i = 0; i < 10; ++i) CHECK(w.put(i));
    CHECK(w.within(30s, [&] { return w.stat().disk_objects == 10; }));
  }
  size_t damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    if (entry.path().extension() != ".bucket") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 1000);
    file.put('!');
    ++damaged;
  }
  World w(setup);
  size_t right = 0, failed = 0;
  for (int i = 0; i < 10; ++i) {
    const std::string got = w.get(i);
    CHECK(got != "wrong");
    right += got == "right";
    failed += got != "right";
  }
  CHECK(failed == damaged);
  CHECK(right == 10 - damaged);
  CHECK(w.within(30s, [&] { return w.stat().disk_objects == 10 - damaged; }));
}

TEST_CASE("a slot whose lease ended is stale for a late reader") {
  const Folder folder;
  Setup setup;
  setup.folder = folder.path;
  setup.offload = "eager";
  setup.memory = 16 * kMiB;
  setup.lease = 20ms;
  World w(setup);
  for (int i = 0; i < 4; ++i) CHECK(w.put(i));
  CHECK(w.within(30s, [&] { return w.stat().disk_objects == 4; }));
  auto holder = rpc::SyncClient::connect(w.server->address(), w.clock);
  REQUIRE(holder);
  const auto late = (*holder)->call(LoadObjects{{w.key(0), "nobody"}, false}, 5s);
  REQUIRE(late);
  REQUIRE(late->items[0].outcome.ok());
  CHECK(late->items[1].outcome.code == static_cast<uint8_t>(Code::kNotFound));
  auto segment = w.client_engine->open_segment(w.server->address(), 5s);
  REQUIRE(segment);
  std::vector<std::byte> buffer(kValue);
  xfer::Request r;
  r.local = buffer.data();
  r.segment = *segment;
  r.offset = late->items[0].offset;
  r.bytes = kValue;
  r.guard = {late->items[0].guard, late->items[0].generation.n};
  Result<> outcome;
  CHECK(w.within(30s, [&] {
    outcome = w.client_engine->transfer_sync(r, 5s);
    return !outcome.has_value();
  }));
  CHECK(outcome.error().code == Code::kStale);
  // Others use the memory now; the late reader still gets nothing of theirs.
  for (int i = 1; i < 4; ++i) CHECK((*holder)->call(LoadObjects{{w.key(i), w.key(1)}, false}, 5s));
  outcome = w.client_engine->transfer_sync(r, 5s);
  REQUIRE(!outcome);
  CHECK(outcome.error().code == Code::kStale);
  for (int i = 0; i < 2; ++i) CHECK((*holder)->call(ReleaseSlots{late->batch}, 5s));
}

}  // namespace
}  // namespace mc::store
