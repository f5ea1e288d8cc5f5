// Values that only a disk holds, and the hint that they will be read, through the C interface.
#include <algorithm>
#include <filesystem>

#include "store/client/async_client.h"
#include "store/offload/file_storage.h"
#include "tests/unit/capi/peer.h"
#include "tests/unit/capi/pool.h"

namespace mc::capi {
namespace {
namespace prefetching {

constexpr size_t kValue = 256 << 10, kValues = 32;

// A master, and a node whose memory has room for half of the values, over a disk.
class DiskPool {
 public:
  DiskPool() : loop_(clock_) {
    store::MasterServiceOptions m;
    m.listen = m.http = "127.0.0.1:0";
    m.master.lease_ttl = 20ms;
    m.master.rebuild_wait = 0s;
    m.master.offload = "on-evict";
    m.master.on_slow_offload = "wait";
    auto master = store::MasterService::open(loop_, m, 1'700'000'000, 1, metrics_);
    REQUIRE(master);
    master_ = std::move(*master);
    xfer::EngineOptions e;
    e.node = "n";
    auto engine = xfer::Engine::open(clock_, e, metrics_);
    REQUIRE(engine);
    engine_ = std::move(*engine);
    auto server = rpc::Server::open(loop_, "127.0.0.1:0", metrics_);
    REQUIRE(server);
    server_ = std::move(*server);
    xfer::serve(*engine_, *server_);
    store::NodeOptions n;
    n.master = master_->control();
    n.size = Bytes{kValue * kValues / 2};
    n.heartbeat = 50ms;
    auto node = store::StoreNode::open(loop_, *engine_, "n", server_->address(), n, metrics_);
    REQUIRE(node);
    node_ = std::move(*node);
    open_disk(n);
    for (int i = 0; i < 3000 && !tier_->mounted(); ++i) REQUIRE(loop_.turn(10ms));
    REQUIRE(tier_->mounted());
    thread_ = std::thread([this] { (void)loop_.run(); });
    mc_options* options = nullptr;
    REQUIRE(mc_options_new(&options) == MC_OK);
    REQUIRE(mc_options_set(options, "timeout", "60s") == MC_OK);
    REQUIRE(mc_options_set(options, "put-wait", "30s") == MC_OK);
    REQUIRE(mc_store_setup("c", master_->control().c_str(), options, &store_) == MC_OK);
    mc_options_free(options);
  }
  ~DiskPool() {
    mc_store_close(store_);
    loop_.stop();
    thread_.join();
    tier_.reset();
    std::filesystem::remove_all(folder_);
  }
  DiskPool(const DiskPool&) = delete;
  DiskPool& operator=(const DiskPool&) = delete;
  mc_store* store() { return store_; }
  bool in_memory(const std::string& key) {
    mc_place places[4]{};
    places[0].size = sizeof(mc_place);
    size_t count = 0;
    REQUIRE(mc_store_locate(store_, key_of(key), places, 4, &count) == MC_OK);
    return std::any_of(places, places + std::min<size_t>(count, 4),
                       [](const mc_place& p) { return p.tier == MC_TIER_MEMORY; });
  }

 private:
  void open_disk(const store::NodeOptions& n) {
    store::TierOptions t;
    t.folder = folder_;
    t.size = Bytes{256 * kMiB};
    t.flush = 10ms;
    t.staging = Bytes{4 * kMiB};
    auto tier = store::FileStorage::open(loop_, *engine_, *node_, n, t, metrics_);
    REQUIRE(tier);
    tier_ = std::move(*tier);
    node_->announce_tier();
    tier_->serve(*server_);
    store::ClientOptions client;
    client.master = n.master;
    auto brings = store::AsyncClient::open(loop_, *engine_, client, metrics_, 1);
    REQUIRE(brings);
    brings_ = std::move(*brings);
    tier_->on_promote(
        [this](const store::ssd::Stored& object, std::span<const std::byte> value,
               store::FileStorage::Promoted done) {
          store::PutAs as;
          as.promote = true;
          brings_->put(object.key, value, std::move(as),
                       [done = std::move(done)](const Result<store::PutOutcome>& outcome) {
                         if (!outcome) return done(fail(outcome.error()));
                         done(*outcome == store::PutOutcome::kStored);
                       });
        },
        false);
  }

  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("mc-prefetch-" + std::to_string(::getpid())))
          .string();
  SteadyClock clock_;
  Metrics metrics_;
  io::Loop loop_;
  std::unique_ptr<store::MasterService> master_;
  std::unique_ptr<xfer::Engine> engine_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<store::StoreNode> node_;
  std::unique_ptr<store::FileStorage> tier_;
  std::unique_ptr<store::AsyncClient> brings_;
  std::thread thread_;
  mc_store* store_ = nullptr;
};

TEST_CASE("a hint brings to memory what only a disk holds, and counts nothing else") {
  DiskPool pool;
  mc_store* const store = pool.store();
  std::string value(kValue, 'v');
  std::vector<std::string> names;
  for (size_t i = 0; i < kValues; ++i) {
    names.push_back("key-" + std::to_string(i));
    value[0] = static_cast<char>('a' + i);
    REQUIRE(mc_store_put(store, names[i].data(), names[i].size(), value.data(), kValue) == MC_OK);
  }
  const auto on_disk = std::find_if(names.begin(), names.end(),
                                    [&](const std::string& key) { return !pool.in_memory(key); });
  REQUIRE(on_disk != names.end());  // memory does not hold all of them
  const std::string absent = "absent";
  const mc_key keys[] = {key_of(absent), key_of(*on_disk)};
  uint64_t asked = 99;
  REQUIRE(mc_store_prefetch(store, keys, 1, &asked) == MC_OK);
  CHECK(asked == 0);
  CHECK(mc_store_prefetch(store, keys, 0, &asked) == MC_OK);
  CHECK(asked == 0);
  CHECK(mc_store_prefetch(store, nullptr, 1, &asked) == MC_INVALID);
  CHECK(mc_store_prefetch(store, keys, 1, nullptr) == MC_INVALID);
  // It is a hint: it may be dropped for lack of room, and then it is given again.
  const SteadyClock clock;
  for (const Time end = clock.now() + 60s; !pool.in_memory(*on_disk) && clock.now() < end;) {
    REQUIRE(mc_store_prefetch(store, keys, 2, &asked) == MC_OK);
    CHECK(asked <= 1);
  }
  CHECK(pool.in_memory(*on_disk));
  value[0] = static_cast<char>('a' + (on_disk - names.begin()));
  std::string back(kValue, '-');
  REQUIRE(mc_store_get(store, on_disk->data(), on_disk->size(), back.data(), kValue, nullptr) ==
          MC_OK);
  CHECK(back == value);
}

}  // namespace prefetching
}  // namespace
}  // namespace mc::capi
