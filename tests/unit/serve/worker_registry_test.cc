#include <doctest/doctest.h>

#include "base/json.h"
#include "conductor_fakes.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace {

std::vector<int32_t> prompt(int32_t n) {
  std::vector<int32_t> p;
  for (int32_t i = 0; i < n; ++i) p.push_back(i);
  return p;
}

uint64_t held(const Cluster& c, int32_t n, size_t worker = 0) {
  return c.conductor->dry_run(asking(prompt(n))).candidates[worker].local_tokens;
}

}  // namespace

TEST_CASE("a worker of another layout is refused with both fingerprints") {
  Cluster c;
  FakeDecode odd(c.loop, c.conductor->control(), "odd");
  odd.me.block_tokens = 32;
  odd.me.fingerprint = cost::tiny().fingerprint(32);
  odd.error.clear();
  odd.beat();
  REQUIRE(until(c.loop, [&] { return odd.error.find("does not fit") != std::string::npos; }));
  CHECK(odd.error.find("block=32") != std::string::npos);
  CHECK(odd.error.find("block=16") != std::string::npos);
}

TEST_CASE("a worker of a release without a common protocol is left out, and why is said (F124)") {
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  sched::PrefixIndex index(1024);
  WorkerRegistryOptions options;
  options.model = "tiny";
  options.fingerprint = "f";
  WorkerRegistry workers(loop, options, index, metrics);
  Heartbeat beat;
  beat.node = "d0";
  beat.role = "decode";
  beat.epoch = 1;
  beat.control = "127.0.0.1:1";
  beat.model = "tiny";
  beat.fingerprint = "f";
  beat.release = {"9.9.9", wire::kProtocolMax + 1, wire::kProtocolMax + 2};
  const auto refused = workers.heartbeat(beat, clock.now());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kUnsupported);
  CHECK(refused.error().what.find("worker d0 is mc 9.9.9 (protocols ") != std::string::npos);
  CHECK(refused.error().what.find("this conductor is " +
                                  wire::release_text(wire::this_release())) != std::string::npos);
  CHECK(workers.all().empty());
  beat.release.protocol_min = wire::kProtocolMax;
  const auto joined = workers.heartbeat(beat, clock.now());
  REQUIRE(joined);
  CHECK(joined->release.build == wire::this_release().build);
  CHECK(workers.all().at("d0")->release.build == "9.9.9");
}

TEST_CASE("a new conductor learns what workers cache before it is ready") {
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  auto conductor = *Conductor::open(loop, quick(), 1, metrics);
  CHECK(conductor->not_ready() == "no prefill worker");
  FakePrefill p(loop, conductor->control(), "p");
  p.cache = chain_hashes(prompt(64), 16);
  p.me.events_last = 4;
  FakeDecode d(loop, conductor->control(), "d");
  REQUIRE(until(loop, [&] { return conductor->not_ready().empty(); }));
  CHECK(p.snapshots == 2);  // pages
  CHECK(conductor->dry_run(asking(prompt(70))).candidates[0].local_tokens == 64);
  CHECK(conductor->dry_run(asking(prompt(70), "tenant")).candidates[0].local_tokens == 0);
  REQUIRE(until(loop, [&] { return p.acked == 4; }));
}

TEST_CASE("events keep the view; a gap in them is noticed and healed by a snapshot") {
  Cluster c;
  FakePrefill& p = *c.p[0];
  const auto blocks = chain_hashes(prompt(64), 16);
  CHECK(held(c, 70) == 0);
  p.me.events = {{true, blocks[0]}, {true, blocks[1]}};
  p.me.events_first = 1;
  p.me.events_last = 2;
  REQUIRE(until(c.loop, [&] { return p.acked == 2; }));
  CHECK(held(c, 70) == 32);
  p.me.events = {{true, blocks[1]}, {true, blocks[2]}, {false, blocks[1]}};  // one was seen before
  p.me.events_first = 2;
  p.me.events_last = 4;
  REQUIRE(until(c.loop, [&] { return p.acked == 4; }));
  CHECK(held(c, 70) == 16);
  const int before = p.snapshots;
  p.cache = {blocks[0], blocks[1], blocks[2], blocks[3]};
  p.me.events = {{true, blocks[3]}};
  p.me.events_first = p.me.events_last = 9;
  REQUIRE(until(c.loop, [&] { return p.acked == 9; }));
  CHECK(p.snapshots > before);
  CHECK(held(c, 80) == 64);
  CHECK(c.metrics.text().find("mc_conductor_index_gaps_total 1") != std::string::npos);
}

TEST_CASE("a restarted worker is another one: what it held is forgotten") {
  Cluster c;
  FakePrefill& p = *c.p[0];
  p.cache = chain_hashes(prompt(64), 16);
  p.me.epoch = 2;
  p.me.events_last = 0;
  REQUIRE(until(c.loop, [&] { return held(c, 70) == 64; }));
  p.cache.clear();
  p.me.epoch = 3;
  REQUIRE(until(c.loop, [&] { return held(c, 70) == 0; }));
  p.me.epoch = 2;  // the process that was replaced still beats
  p.beat();
  REQUIRE(until(c.loop, [&] { return p.error.find("replaced") != std::string::npos; }));
}

TEST_CASE("a silent worker is gone after its time, and may come back") {
  Cluster c(2, 1, quick());
  c.p[1].reset();
  REQUIRE(until(c.loop, [&] { return c.conductor->cluster()["nodes"].size() == 2; }));
  CHECK(c.conductor->not_ready().empty());
  c.p[1] = std::make_unique<FakePrefill>(c.loop, c.conductor->control(), "p1");
  REQUIRE(until(c.loop, [&] { return c.conductor->cluster()["nodes"].size() == 3; }));
}

TEST_CASE("a draining worker gets nothing new") {
  Cluster c(2);
  c.p[0]->me.draining = true;
  REQUIRE(until(c.loop, [&] { return bool(c.conductor->cluster()["nodes"][1]["draining"]); }));
  Heard heard;
  c.submit(heard);
  REQUIRE(c.finish(heard));
  CHECK(heard.progress.prefill == "p1");
}
