// A worker's cache and what the conductor thinks of it, over a way that loses and repeats things.
#include <doctest/doctest.h>

#include <set>

#include "base/random.h"
#include "conductor_fakes.h"
#include "serve/runtime/heartbeat.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace event_loss_test {
namespace {

struct Loss {
  double events = 0, beats = 0, answers = 0;  // shares that are lost
};

// A worker that caches and evicts, and a conductor's view of it.
struct Site {
  explicit Site(Loss loss, uint64_t seed) : lost(loss), random(seed) {
    workers = std::make_unique<WorkerRegistry>(
        loop, WorkerRegistryOptions{"tiny", cost::tiny().fingerprint(16), 16, 1, 5s, 1s}, index,
        metrics);
    conductor = *rpc::Server::open(loop, "127.0.0.1:0", metrics);
    conductor->on<Heartbeat>(
        [this](const Heartbeat& m, const rpc::Call& call) { return lossy(m, call.now); });
    worker = *rpc::Server::open(loop, "127.0.0.1:0", metrics);
    worker->on<Snapshot>([this](const Snapshot& m, const rpc::Call&) -> Result<KvSnapshot> {
      KvSnapshot page = cache.snapshot(m.from, 20);
      page.epoch = 7;
      return page;
    });
    Heartbeat me;
    me.node = "p0";
    me.role = "prefill";
    me.epoch = 7;
    me.control = worker->address();
    me.model = "tiny";
    me.block_tokens = 16;
    me.fingerprint = cost::tiny().fingerprint(16);
    beats = *Heartbeats::open(
        loop, me, {conductor->address()}, 20ms, &cache, [](Heartbeat&, const std::string&) {},
        metrics);
  }
  Result<HeartbeatAck> lossy(Heartbeat m, Time now) {
    if (random.chance(lost.beats)) return fail(Code::kUnavailable, "lost on the way");
    const size_t before = m.events.size();
    std::erase_if(m.events, [&](const KvEvent&) { return random.chance(lost.events); });
    dropped += before - m.events.size();
    auto ack = workers->heartbeat(m, now);
    if (random.chance(lost.answers)) return fail(Code::kUnavailable, "lost on the way back");
    return ack;
  }
  void churn(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      std::vector<int32_t> prompt(16 * (1 + random.below(8)));
      const auto first = static_cast<int32_t>(random.below(40));
      for (size_t t = 0; t < prompt.size(); ++t) prompt[t] = first + static_cast<int32_t>(t / 16);
      const auto hashes = chain_hashes(prompt, 16, "");
      for (const BlockHash& h : hashes) seen.insert(h.tag());
      const auto tx = cache.allocate({"r", hashes, prompt.size(), hashes.size(), 1s}, loop.now());
      REQUIRE(tx);
      REQUIRE(cache.start(*tx));
      cache.computed(*tx, hashes.size());
      REQUIRE(cache.commit(*tx));
      beats->nudge();
      REQUIRE(loop.turn(1ms));
    }
  }
  bool true_now() {
    workers->tick(loop.now());  // sweeps what earlier snapshots left in the index
    const Worker* const p0 = workers->find("p0");
    if (p0 == nullptr) return false;
    std::set<uint64_t> held;
    for (const BlockHash& h : cache.snapshot(0, 1000).blocks) held.insert(h.tag());
    if (index.blocks() != held.size()) return false;
    for (const uint64_t tag : seen)
      if ((index.match(std::vector<uint64_t>{tag}, workers->slots())[p0->slot] == 1) !=
          held.contains(tag))
        return false;
    return true;
  }
  double counted(const std::string& name) const {
    const std::string text = metrics.text();
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? 0 : std::stod(text.substr(at + name.size() + 2));
  }

  const Loss lost;
  Random random;
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  sched::PrefixIndex index{100000};
  BlockManager cache{64, 16, 1};
  std::set<uint64_t> seen;
  size_t dropped = 0;
  std::unique_ptr<WorkerRegistry> workers;
  std::unique_ptr<rpc::Server> conductor, worker;
  std::unique_ptr<Heartbeats> beats;
};

}  // namespace

TEST_CASE("of a cache's events one in twenty is lost, and the index is true within seconds") {
  double mismatches = 0;  // a snapshot that comes late may cover what one site lost
  for (const Loss& loss : {Loss{.events = 0.05}, Loss{.beats = 0.05, .answers = 0.05},
                           Loss{.events = 0.05, .beats = 0.05, .answers = 0.05}}) {
    Site s(loss, 11);
    s.churn(400);
    CHECK(until(
        s.loop, [&] { return s.true_now(); }, 5s));
    CHECK(s.seen.size() > 64);  // more than it holds: it did evict
    if (loss.events > 0) {
      CHECK(s.dropped > 10);
      mismatches += static_cast<double>(s.counted("mc_conductor_index_digest_mismatches_total"));
    }
  }
  CHECK(mismatches > 0);
}

TEST_CASE("blocks that the index listed on a worker without them are counted") {
  Cluster c;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 40; ++i) prompt.push_back(i);
  for (const BlockHash& h : chain_hashes(prompt, 16, "")) c.p[0]->me.events.push_back({true, h});
  c.p[0]->me.events_last = c.p[0]->me.events.size();
  REQUIRE(until(c.loop, [&] { return c.p[0]->acked == 2; }));
  c.p[0]->done.cached_tokens = 16;  // of two blocks one was evicted
  Heard heard;
  c.submit(heard, 40);
  REQUIRE(c.finish(heard));
  CHECK(c.metrics.text().find("mc_conductor_stale_hit_tokens_total 16") != std::string::npos);
}

TEST_CASE("where nothing is lost one snapshot is enough") {
  Site s({}, 12);
  s.churn(200);
  CHECK(until(
      s.loop, [&] { return s.true_now(); }, 5s));
  CHECK(s.counted("mc_conductor_index_digest_mismatches_total") == 0);
  CHECK(s.counted("mc_conductor_index_resyncs_total") == 1);
}

}  // namespace event_loss_test
