// Times to live on a disk, over starts of the node: what it tells a master of another time of day.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "io/file.h"
#include "rpc/server.h"
#include "ssd_values.h"
#include "store/metadata/table.h"
#include "store/offload/file_storage.h"
#include "store/ssd/format.h"

namespace mc::store {
namespace {
namespace folder_clock_test {

using namespace std::chrono_literals;

constexpr uint64_t kMaster = 1'600'000'000, kWall = 1'700'000'000;

struct Place {
  Place() { std::filesystem::remove_all(path); }
  ~Place() { std::filesystem::remove_all(path); }
  const std::string path =
      (std::filesystem::temp_directory_path() / ("mc-folder-clock-" + std::to_string(::getpid())))
          .string();
};

// A master that knows nothing and listens to what lies on the disk of the one node.
struct Listener {
  Listener() {
    auto s = rpc::Server::open(loop, "127.0.0.1:0", metrics);
    REQUIRE(s);
    server = std::move(*s);
    const auto mounted = [] {
      Mounted out;
      out.epoch = 1;
      out.now_s = kMaster;
      return out;
    };
    server->on<Mount>([=](const Mount&, const rpc::Call&) -> Result<Mounted> { return mounted(); });
    server->on<Inventory>(
        [=](const Inventory&, const rpc::Call&) -> Result<Mounted> { return mounted(); });
    server->on_later<Heartbeat>(
        [this](const Heartbeat&, const rpc::Call&, const rpc::Reply<HeartbeatReply>& reply) {
          beats.push_back(reply);  // unanswered: there are no orders
        });
    server->on<TierMount>([this](const TierMount& m, const rpc::Call&) -> Result<TierAck> {
      listed = m.objects;
      last = m.last;
      return TierAck{1, static_cast<uint8_t>(BeatStatus::kOk)};
    });
    server->on_later<TierHeartbeat>(
        [this](const TierHeartbeat&, const rpc::Call&, const rpc::Reply<TierWork>& reply) {
          works.push_back(reply);
        });
  }
  SteadyClock clock;
  Metrics metrics;
  io::Loop loop{clock};
  std::unique_ptr<rpc::Server> server;
  std::vector<rpc::Reply<HeartbeatReply>> beats;
  std::vector<rpc::Reply<TierWork>> works;
  std::vector<TierObject> listed;
  bool last = false;
};

TierOptions tier_in(const std::string& folder) {
  TierOptions t;
  t.folder = folder;
  t.size = Bytes{16 * kMiB};
  t.staging = Bytes{1 * kMiB};
  return t;
}

uint64_t marked_wall_s(const std::string& folder) {
  const auto mark = ssd::decode_mark(io::read_file(folder + "/CLOCK").value_or(""));
  return mark ? mark->wall_s : 0;
}

// A start of the node on a machine of these times, which are `then` before it ends. Returns: the
// seconds that the master hears are left to `key`.
std::optional<int64_t> left(const std::string& folder, HostTimes host, const std::string& key,
                            const std::optional<HostTimes>& then = {}) {
  Listener master;
  Metrics metrics;
  xfer::EngineOptions e;
  e.node = "n";
  auto engine = xfer::Engine::open(master.clock, e, metrics);
  REQUIRE(engine);
  NodeOptions n;
  n.master = master.server->address();
  n.size = Bytes{1 * kMiB};
  n.heartbeat = 20ms;  // and how soon the tier looks again
  auto prepared_node = prepare_node(**engine, "n", n, master.clock, host);
  REQUIRE(prepared_node);
  auto node = StoreNode::open(master.loop, **engine, "n", "127.0.0.1:1", n, metrics,
                              std::move(*prepared_node));
  REQUIRE(node);
  auto prepared =
      prepare_tier(**engine, n, tier_in(folder), master.clock, [&host] { return host; });
  REQUIRE(prepared);
  auto tier = FileStorage::open(master.loop, **engine, **node, n, tier_in(folder), metrics,
                                std::move(*prepared));
  REQUIRE(tier);
  const Time deadline = master.clock.now() + 60s;
  while (!(*tier)->mounted() && master.clock.now() < deadline) REQUIRE(master.loop.turn(100ms));
  REQUIRE(master.last);
  if (then) host = *then;
  while (marked_wall_s(folder) != host.wall_s && master.clock.now() < deadline)
    REQUIRE(master.loop.turn(100ms));
  CHECK(marked_wall_s(folder) == host.wall_s);
  for (const TierObject& o : master.listed)
    if (o.name == key) return static_cast<int64_t>(o.keep_until_s) - static_cast<int64_t>(kMaster);
  return {};
}

void save(const std::string& folder, const std::string& key, uint64_t keep_until_s) {
  SteadyClock clock;
  ssd::ScanReport report;
  auto disk = ssd::open_disk(folder, {});
  REQUIRE(disk);
  const auto options = tier_in(folder).backend_options();
  REQUIRE(options);
  auto backend = ssd::open_backend(*disk, *options, clock, report);
  REQUIRE(backend);
  ssd::Saves saves;
  saves.add(key, 1, 5000);
  ssd::Save item = saves.items()[0];
  item.object.keep_until_s = keep_until_s;
  item.object.klass = static_cast<uint32_t>(ObjectClass::kContext);
  REQUIRE((*backend)->write({&item, 1}));
}

TEST_CASE("what a disk keeps for an hour is kept for an hour, whatever wall clocks say at starts") {
  const Place place;
  CHECK(!left(place.path, {kWall, 1000, "boot"}, "key"));
  save(place.path, "key", kWall + 36'000);
  save(place.path, "endless", 0);
  const auto about = [&](const HostTimes& host, int64_t want) {
    const auto got = left(place.path, host, "key");
    REQUIRE(got);
    CAPTURE(host.wall_s);
    CAPTURE(host.boot);
    // Time passes in the test, too, and both clocks count whole seconds.
    CHECK(*got <= want + 1);
    CHECK(*got > want - 300);
  };
  about({kWall + 1000, 2000, "boot"}, 35'000);
  about({kWall + 2000 + 20'000, 3000, "boot"}, 34'000);  // stepped forward meanwhile
  about({kWall + 3000 - 20'000, 4000, "boot"}, 33'000);  // and back
  about({kWall + 4000 - 20'000, 10, "next"}, 32'000);    // the machine was off for 1000 s
  about({kWall - 1'000'000, 20, "third"}, 32'000);       // the time of day was lost
  about({kWall + 1'000'000, 10'020, "third"}, 22'000);   // and is known again
  CHECK(left(place.path, {kWall, 10'021, "third"}, "endless") == -static_cast<int64_t>(kMaster));
  // Stepped while the node runs, then the machine boots: only the mark tells both.
  CHECK(left(place.path, {kWall, 10'022, "third"}, "key",
             HostTimes{kWall - 50'000, 10'022, "third"}));
  about({kWall - 49'000, 10, "fourth"}, 21'000);
  // It is over, though the wall clock is back before its beginning.
  const auto over = left(place.path, {kWall - 60'000, 60'000, "fourth"}, "key");
  REQUIRE(over);
  CHECK(*over < 0);
}

TEST_CASE("a folder without a mark, or with a damaged one, goes by the wall clock") {
  const Place place;
  CHECK(!left(place.path, {kWall, 1000, "boot"}, "key"));
  save(place.path, "key", kWall + 36'000);
  for (const bool damaged : {false, true}) {
    if (damaged) {
      std::fstream file(place.path + "/CLOCK", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(12);
      file.put('!');
    } else {
      REQUIRE(std::filesystem::remove(place.path + "/CLOCK"));
    }
    const auto got = left(place.path, {kWall + 20'000, 2000, "boot"}, "key");
    REQUIRE(got);
    CHECK(*got <= 16'000);
    CHECK(*got > 15'700);
  }
}

}  // namespace folder_clock_test
}  // namespace
}  // namespace mc::store
