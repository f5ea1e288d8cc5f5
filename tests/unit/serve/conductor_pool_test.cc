// The conductor follows mc-master, and decides with what the pool has.
#include <doctest/doctest.h>

#include "base/json.h"
#include "serve/connector/store_connector.h"
#include "store/metadata/events.h"
#include "tests/unit/serve/conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace conductor_pool_test {

namespace {

constexpr size_t kTokens = 16'000, kBlock = 16;

std::vector<int32_t> prompt(int32_t first = 0) {
  std::vector<int32_t> p;
  for (size_t i = 0; i < kTokens; ++i) p.push_back(static_cast<int32_t>(i) + first);
  return p;
}

// A master that a test tells what it has.
struct FakeMaster {
  FakeMaster(io::Loop& loop, const std::string& address, uint64_t start) : epoch(start) {
    server = *rpc::Server::open(loop, address, metrics);
    server->on<store::List>(
        [this](const store::List& m, const rpc::Call&) -> Result<store::Listed> {
          store::Listed page;
          page.epoch = epoch;
          page.next_event = log.next();
          auto at = objects.upper_bound(std::max(m.after, m.prefix));
          for (; at != objects.end() && at->first.starts_with(m.prefix); ++at) {
            if (page.items.size() == 100) {
              page.more = true;
              break;
            }
            page.items.emplace_back();
            page.items.back().key = at->first;
            page.items.back().replicas = at->second ? 0 : 1;
            page.items.back().disks = at->second ? 1 : 0;
            page.items.back().node = nodes[at->first];
          }
          return page;
        });
    server->on<store::Replay>(
        [this](const store::Replay& m, const rpc::Call&) -> Result<store::Replayed> {
          ++replays;
          store::Replayed r;
          r.epoch = epoch;
          r.next = log.next();
          r.events = log.since(m.from, 1000, &r.gap);
          return r;
        });
  }
  void stored(const std::string& key, bool disk = false) {
    objects[key] = disk;
    event(store::EventKind::kStored, key, disk);
  }
  void event(store::EventKind kind, const std::string& key, bool disk = false) {
    store::Event& e = log.add();
    e.kind = static_cast<uint8_t>(kind);
    e.key = key;
    e.tenant = "default";
    e.tier = static_cast<uint8_t>(disk ? store::EventTier::kDisk : store::EventTier::kMemory);
    e.nodes = nodes[key] = node;
  }
  void stored(const std::vector<int32_t>& tokens, size_t from, size_t to, bool disk = false) {
    const auto hashes = chain_hashes(tokens, kBlock);
    for (size_t i = from; i < std::min(to, hashes.size()); ++i)
      stored(pool_key(cost::tiny().pool_name(), hashes[i]), disk);
  }
  uint64_t epoch;
  Metrics metrics;
  std::unique_ptr<rpc::Server> server;
  store::EventLog log{8192};
  std::map<std::string, bool> objects;       // true: on a disk only
  std::string node{};                        // that has what is stored from now on
  std::map<std::string, std::string> nodes;  // by key
  int replays = 0;
};

struct Site {
  explicit Site(Duration ttft_slo = {}) : master(std::in_place, loop, "127.0.0.1:0", 1) {
    address = master->server->address();
    slo = ttft_slo;
  }
  void open(uint8_t pool_reuse = static_cast<uint8_t>(sched::PoolUse::kAuto)) {
    ConductorOptions o = quick();
    o.master = address;
    o.admission.ttft_slo = slo;
    conductor = *Conductor::open(loop, o, 42, metrics);
    p = std::make_unique<FakePrefill>(loop, conductor->control(), "p");
    p->me.pool_reuse = pool_reuse;
    d = std::make_unique<FakeDecode>(loop, conductor->control(), "d");
    const std::string use = pool_reuse == 0 ? "never" : "auto";
    REQUIRE(until(loop, [&] {
      const Json all = conductor->cluster();
      const auto told = [&](const Json& node) { return node.value("pool_reuse", "") == use; };
      return conductor->not_ready().empty() &&
             std::any_of(all["nodes"].begin(), all["nodes"].end(), told);
    }));
  }
  uint64_t blocks() const { return conductor->cluster()["pool"]["blocks"].get<uint64_t>(); }
  bool whole() const { return conductor->cluster()["pool"]["whole"].get<bool>(); }
  sched::Decision decide(int32_t first = 0) const {
    return conductor->dry_run(asking(prompt(first)));
  }

  // A request whose prompt the pool had; fetching it took so long.
  void fetch(const std::vector<int32_t>& tokens, double ms) {
    p->then = [&](const std::string& request) { d->send(request, {65, 66}, "length"); };
    p->done.cached_tokens = p->done.pool_tokens = kTokens - kBlock;
    p->done.prefill_ms = 1e3 * cost::prefill_seconds(cost::tiny(), kTokens, kTokens - kBlock);
    p->done.load_ms = p->done.fetch_ms = ms;
    Heard heard;
    GenerateRequest g = asking(tokens);
    g.max_tokens = 4;
    conductor->submit(std::move(g), heard.sink());
    REQUIRE(until(loop, [&] { return heard.done; }));
    CHECK(!heard.failed);
  }

  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  std::optional<FakeMaster> master;
  std::string address;
  Duration slo;
  std::unique_ptr<Conductor> conductor;
  std::unique_ptr<FakePrefill> p;
  std::unique_ptr<FakeDecode> d;
};

}  // namespace

TEST_CASE("F63: blocks of the pool count, by tier, and those that leave it do not") {
  Site s;
  s.master->stored(prompt(), 0, 1000);
  s.master->stored("tiny/other@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@" + std::string(64, 'a'));
  s.master->stored(cost::tiny().pool_name() + "@pcp0@dcp0@head_or_tp_rank:0@pp_rank:1@" +
                   std::string(64, 'a'));
  s.master->stored(cost::tiny().pool_name() + "@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@no-hash");
  s.open();
  REQUIRE(until(s.loop, [&] { return s.whole() && s.blocks() == 1000; }));
  const sched::Decision d = s.decide();
  CHECK(d.chosen.pool_memory_tokens == kTokens - kBlock);
  CHECK(d.chosen.pool_disk_tokens == 0);
  CHECK(s.decide(77).chosen.pool_tokens() == 0);
  const Json route = s.conductor->route(asking(prompt()));
  CHECK(route["reused_from"] == "15984 from the pool's memory");
  CHECK(route["candidates"][0]["pool_ms"].get<double>() > 0);

  s.master->stored(prompt(), 0, 500, true);  // only disks have them now
  REQUIRE(until(s.loop, [&] { return s.decide().chosen.pool_disk_tokens == 500 * kBlock; }));
  CHECK(s.decide().chosen.pool_memory_tokens == 499 * kBlock);
  const auto hashes = chain_hashes(prompt(), kBlock);
  s.master->event(store::EventKind::kRemoved, pool_key(cost::tiny().pool_name(), hashes[900]));
  REQUIRE(until(s.loop, [&] { return s.decide().chosen.pool_memory_tokens == 400 * kBlock; }));
  s.conductor->update_metrics();
  CHECK(s.metrics.gauge("mc_conductor_pool_blocks", "").value() == 999);
}

TEST_CASE("a worker that does not use the pool gets nothing from it") {
  Site s;
  s.master->stored(prompt(), 0, 1000);
  s.open(static_cast<uint8_t>(sched::PoolUse::kNever));
  REQUIRE(until(s.loop, [&] { return s.blocks() == 1000; }));
  CHECK(s.decide().chosen.pool_tokens() == 0);
}

TEST_CASE("F63: an SLO between what is computed and what is fetched refuses only the former") {
  Site s;
  s.master->stored(prompt(), 0, 1000);
  s.slo = 30ms;  // of 21 and 43 predicted
  s.open();
  REQUIRE(until(s.loop, [&] { return s.whole(); }));
  const sched::Decision d = s.decide();
  CHECK(d.verdict == sched::Verdict::kAccept);
  CHECK(s.decide(77).verdict == sched::Verdict::kTtft);
  // The step that gives the first token is part of TTFT.
  const sched::Candidate& c = d.chosen;
  CHECK(c.first_step_ms >= d.tbt_ms);
  CHECK(c.first_step_ms > 1);
  CHECK(c.ttft_ms ==
        doctest::Approx(c.queue_ms + c.pool_ms + c.prefill_ms + c.transfer_ms + c.first_step_ms));
}

TEST_CASE("a master that is gone costs the view, and gives it back when it returns") {
  Site s;
  s.master->stored(prompt(), 0, 1000);
  s.open();
  REQUIRE(until(s.loop, [&] { return s.whole() && s.blocks() == 1000; }));
  s.master.reset();
  REQUIRE(until(s.loop, [&] { return !s.whole(); }));
  CHECK(s.blocks() == 0);
  CHECK(s.decide().chosen.pool_tokens() == 0);
  CHECK(s.decide().verdict == sched::Verdict::kAccept);
  CHECK(!s.conductor->cluster()["pool"]["trouble"].get<std::string>().empty());

  s.master.emplace(s.loop, s.address, 2);  // anew, with half of it
  s.master->stored(prompt(), 0, 500);
  REQUIRE(until(s.loop, [&] { return s.whole() && s.blocks() == 500; }));
  CHECK(s.decide().chosen.pool_memory_tokens == 500 * kBlock);
}

TEST_CASE("a conductor whose master was never there serves, and finds it later") {
  Site s;
  s.master.reset();
  s.open();
  CHECK(s.decide().verdict == sched::Verdict::kAccept);
  s.master.emplace(s.loop, s.address, 1);
  s.master->stored(prompt(), 0, 1000);
  REQUIRE(until(s.loop, [&] { return s.whole(); }));
  CHECK(s.decide().chosen.pool_memory_tokens == kTokens - kBlock);
}

TEST_CASE("what a fetch took teaches the pool's rate, not the speed of computing") {
  Site s;
  s.master->stored(prompt(), 0, 1000);
  s.open();
  REQUIRE(until(s.loop, [&] { return s.whole(); }));
  const double before = s.decide().chosen.pool_ms;
  const double factor = s.conductor->cluster()["prefill_factor"].get<double>();
  const double rate = s.conductor->cluster()["pool_memory_bytes_per_s"].get<double>();
  s.fetch(prompt(), 10 * before);
  CHECK(s.conductor->cluster()["pool_memory_bytes_per_s"].get<double>() < rate / 2);
  CHECK(s.conductor->cluster()["prefill_factor"].get<double>() == doctest::Approx(factor));
}

TEST_CASE("F81: of two nodes only the slow one's blocks are computed") {
  Site s;
  s.master->node = "quick";
  s.master->stored(prompt(), 0, 1000);
  s.master->stored(prompt(20'000), 0, 1000);
  s.open();
  REQUIRE(until(s.loop, [&] { return s.whole(); }));  // its node by the snapshot
  s.master->node = "slow";
  s.master->stored(prompt(40'000), 0, 1000);
  s.master->stored(prompt(60'000), 0, 1000);
  REQUIRE(until(s.loop, [&] { return s.blocks() == 4000; }));
  CHECK(s.decide(60'000).chosen.pool_tokens() == kTokens - kBlock);
  const double before = s.decide().chosen.pool_ms;
  s.fetch(prompt(), before);
  s.fetch(prompt(40'000), 100 * before);
  CHECK(s.decide(20'000).chosen.pool_tokens() == kTokens - kBlock);
  CHECK(s.decide(60'000).chosen.pool_tokens() == 0);
  const Json nodes = s.conductor->cluster()["pool_nodes"];
  REQUIRE(nodes.size() == 4);  // the first two are of the tiers
  CHECK(nodes[0]["name"] == "");
  CHECK(nodes[1]["tier"] == "disk");
  CHECK(nodes[2]["name"] == "quick");
  CHECK(nodes[3]["tier"] == "memory");
  CHECK(nodes[2]["bytes_per_s"].get<double>() > 5 * nodes[3]["bytes_per_s"].get<double>());
}

TEST_CASE("behind what memory has a slow disk is not waited for") {
  Site s;
  s.master->stored(prompt(), 0, 500);
  s.master->stored(prompt(), 500, 1000, true);
  s.open();
  REQUIRE(until(s.loop, [&] { return s.whole() && s.blocks() == 1000; }));
  const sched::Candidate c = s.decide().chosen;
  CHECK(c.pool_memory_tokens == 500 * kBlock);
  CHECK(c.pool_disk_tokens == 0);
  CHECK(c.reused_tokens == 500 * kBlock);
}

}  // namespace conductor_pool_test
