#include "sim/pool/pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "serve/batch/batcher.h"
#include "sim/cluster/cluster.h"
#include "sim/pool/pool_traffic.h"

using namespace mc;
using namespace mc::sim;
using namespace std::chrono_literals;

namespace {

const Time t0{};
constexpr auto kNormal = trace::CacheClass::kNormal;

// Blocks [first, end) of one prompt.
std::vector<BlockHash> blocks(uint64_t first, uint64_t end) {
  trace::TraceRequest r;
  for (uint64_t id = first; id < end; ++id) r.hash_ids.push_back(id);
  r.input_length = 16 * (end - first);
  return block_hashes(r, 16);
}

// Puts them at once, as if their bytes took no time.
size_t put(Pool& pool, const std::vector<BlockHash>& hashes, Time now,
           trace::CacheClass of = kNormal) {
  pool.put(1, hashes, of, now);
  const auto granted = pool.granted();
  if (granted.empty()) return 0;  // it waits for room
  pool.stored(granted[0].grants, now);
  return granted[0].grants.size();
}

size_t indexed(const Pool& pool, const std::vector<BlockHash>& hashes) {
  return static_cast<size_t>(std::count_if(hashes.begin(), hashes.end(), [&](const BlockHash& h) {
    return pool.index().tier(h.tag()) == sched::PoolTier::kMemory;
  }));
}

struct Rig {
  explicit Rig(uint32_t machines, double nic = 1e6, uint64_t block_bytes = 1000)
      : network(machines, nic), traffic({block_bytes, 1e6}, network, t0) {
    for (uint32_t m = 0; m < machines; ++m) traffic.mount(m, 1000, t0);
  }
  // Until `until`, or until nothing moves any more.
  void run(Time until = Time::max()) {
    while (true) {
      Time next = network.deadline().value_or(Time::max());
      if (traffic.busy()) next = std::min(next, std::max(traffic.deadline(), now + 1us));
      if (next > until || next == Time::max()) break;
      now = next;
      for (const Network::FlowId flow : network.finished(now)) CHECK(traffic.arrived(flow, now));
      if (traffic.deadline() <= now) traffic.tick(now);
      for (const PoolTraffic::Read& r : traffic.ended()) reads.push_back(r);
    }
  }
  Network network;
  PoolTraffic traffic;
  Time now = t0;
  std::vector<PoolTraffic::Read> reads;
};

}  // namespace

TEST_CASE("the pool has what was put, where its master placed it, and the view knows as much") {
  Pool pool(t0);
  for (uint32_t m = 0; m < 4; ++m) pool.mount(m, 100, t0);
  const auto prompt = blocks(0, 40);
  CHECK(pool.find(prompt, t0).empty());
  CHECK(put(pool, prompt, t0) == 40);
  const auto holders = pool.find(prompt, t0);
  REQUIRE(holders.size() == 40);
  CHECK(std::set<uint32_t>(holders.begin(), holders.end()).size() > 1);
  for (size_t i = 0; i < prompt.size(); ++i)
    CHECK(pool.index().place(prompt[i].tag()) ==
          sched::PoolPlace{sched::PoolTier::kMemory, static_cast<uint16_t>(holders[i] + 1)});
  CHECK(put(pool, prompt, t0) == 0);  // it has them
  CHECK(put(pool, blocks(100, 110), t0, trace::CacheClass::kEphemeral) == 0);
  CHECK(pool.find(blocks(30, 50), t0).size() == 10);  // only leading ones count

  // What lay on a machine is gone with it. Its memory is empty when it is back.
  pool.unmount(holders[5], t0);
  CHECK(
      pool.find(prompt, t0).size() ==
      static_cast<size_t>(std::find(holders.begin(), holders.end(), holders[5]) - holders.begin()));
  CHECK(indexed(pool, prompt) ==
        40 - static_cast<size_t>(std::count(holders.begin(), holders.end(), holders[5])));
  pool.mount(holders[5], 100, t0);
  CHECK(put(pool, prompt, t0) > 0);
  CHECK(pool.find(prompt, t0).size() == 40);
}

TEST_CASE(
    "a full pool evicts the least recently used; what a reader was shown stays for its lease") {
  Pool pool(t0);
  pool.mount(0, 100, t0);
  const auto old = blocks(0, 10), read = blocks(10, 20);
  CHECK(put(pool, old, t0) == 10);
  CHECK(put(pool, read, t0) == 10);
  CHECK(pool.find(read, t0).size() == 10);
  for (uint64_t i = 0; i < 20; ++i) {
    put(pool, blocks(1000 + 10 * i, 1010 + 10 * i), t0);
    for (int k = 0; k < 100 && pool.deadline() <= t0; ++k) pool.tick(t0);
    CHECK(pool.blocks() <= 100);
  }
  CHECK(pool.evicted() > 50);
  CHECK(pool.find(old, t0).empty());
  CHECK(indexed(pool, old) == 0);
  CHECK(pool.find(read, t0).size() == 10);
}

TEST_CASE("a read takes a round trip and the time of its bytes on the NICs") {
  Rig rig(3);
  const auto prompt = blocks(0, 30);
  rig.traffic.put(0, prompt, kNormal, rig.now);
  rig.run();
  const auto holders = rig.traffic.find(prompt, rig.now);
  REQUIRE(holders.size() == 30);
  const auto here = static_cast<double>(std::count(holders.begin(), holders.end(), 2u));
  const Time begun = rig.now;
  rig.traffic.read(7, 2, holders, rig.now);
  rig.run();
  REQUIRE(rig.reads.size() == 1);
  CHECK(rig.reads[0].request == 7);
  CHECK(rig.reads[0].whole);
  // 1 MB/s into the reader's NIC, and as fast within its memory.
  CHECK(to_ms(rig.now - begun) == doctest::Approx(std::max(30 - here, here + 1)).epsilon(1e-3));
  CHECK(rig.traffic.totals().read_bytes == 30e3);
}

TEST_CASE("a read ends with a machine that had part of it, and with its request") {
  Rig rig(3);
  const auto prompt = blocks(0, 30);
  rig.traffic.put(0, prompt, kNormal, rig.now);
  rig.run();
  const auto holders = rig.traffic.find(prompt, rig.now);
  REQUIRE(std::count(holders.begin(), holders.end(), 1u) > 0);
  rig.traffic.read(7, 2, holders, rig.now);
  rig.traffic.read(8, 0, holders, rig.now);
  rig.traffic.cancel(8, rig.now);
  rig.traffic.unmount(1, rig.now);
  CHECK(rig.network.flows() == 0);
  rig.run();
  for (const PoolTraffic::Read& r : rig.traffic.ended()) rig.reads.push_back(r);
  REQUIRE(rig.reads.size() == 1);
  CHECK(rig.reads[0].request == 7);
  CHECK_FALSE(rig.reads[0].whole);

  // The reader itself: nobody hears of it.
  rig.traffic.read(9, 2, std::vector<uint32_t>{0, 2}, rig.now);
  rig.traffic.unmount(2, rig.now);
  rig.run();
  CHECK(rig.traffic.ended().empty());
  CHECK(rig.reads.size() == 1);
}

TEST_CASE("puts go two calls of 32 blocks at a time, and those of a machine that is gone end") {
  Rig rig(2);
  rig.traffic.unmount(0, t0);  // what 0 computes goes to 1
  rig.traffic.mount(0, 1, t0);
  rig.traffic.put(0, blocks(0, 320), kNormal, t0);
  uint64_t most = 0;
  while (rig.network.deadline()) {
    most = std::max<uint64_t>(most, rig.network.flows());
    rig.run(*rig.network.deadline());
  }
  CHECK(most == 2);
  CHECK(rig.traffic.find(blocks(0, 320), rig.now).size() == 320);

  rig.traffic.put(0, blocks(1000, 1320), kNormal, rig.now);
  CHECK(rig.network.flows() > 0);
  rig.traffic.unmount(0, rig.now);
  CHECK(rig.network.flows() == 0);
  rig.run();
  CHECK(rig.traffic.find(blocks(1000, 1320), rig.now).size() <= 1);
  rig.traffic.put(1, blocks(1000, 1320), kNormal, rig.now);  // nothing waits for 0
  CHECK(rig.traffic.find(blocks(1000, 1320), rig.now).size() == 320);
}

TEST_CASE("no put begins to a machine that is failing") {
  Rig rig(3);
  rig.traffic.unmount(0, t0);  // what 0 computes goes to 1
  rig.traffic.mount(0, 1, t0);
  rig.traffic.unmount(2, t0);
  rig.traffic.put(0, blocks(0, 320), kNormal, t0);
  CHECK(rig.network.sending(0) == 2);
  rig.traffic.mount(2, 1000, t0);
  rig.traffic.unmount(1, t0);
  CHECK(rig.network.rate_in(1) == 0);
  CHECK(rig.network.rate_in(2) > 0);
  rig.run();
  CHECK(rig.network.received(1) == 0);
  // Two calls were under way, and 0 has room for one block. All may be put again.
  CHECK(indexed(rig.traffic.pool(), blocks(0, 320)) == 320 - 64 + 1);
  rig.traffic.put(0, blocks(0, 320), kNormal, rig.now);
  rig.run();
  CHECK(indexed(rig.traffic.pool(), blocks(0, 320)) == 320);
}

TEST_CASE("a put that waits for room goes on when there is some") {
  Rig rig(2);
  rig.traffic.unmount(0, t0);
  rig.traffic.unmount(1, t0);
  rig.traffic.mount(1, 40, t0);
  rig.traffic.mount(0, 1, t0);
  rig.traffic.put(0, blocks(0, 64), kNormal, t0);
  rig.run();
  CHECK(to_ms(rig.now - t0) < 70);  // 1 MB/s
}

namespace {

trace::Trace turns(uint64_t n, uint64_t shared, uint64_t ms) {
  trace::Trace t;
  t.block_tokens = 16;
  for (uint64_t i = 0; i < n; ++i) {
    trace::TraceRequest r;
    r.timestamp_ms = ms * i;
    for (uint64_t k = 0; k < shared; ++k) r.hash_ids.push_back(k);
    r.hash_ids.push_back(1000 + i);
    r.input_length = 16 * r.hash_ids.size() - 12;
    r.output_length = 1;
    t.records.push_back(std::move(r));
  }
  return t;
}

SimResult run(const trace::Trace& t, const SimOptions& o, double token_s = 0.5e-3) {
  cost::ModelSpec spec = cost::tiny();
  spec.cost.c0 = spec.cost.c2 = 0;
  spec.cost.c1 = token_s;
  spec.cost.load_bytes_per_s = 1e18;
  const auto arrivals = trace::schedule(t, {});
  REQUIRE(arrivals);
  const auto out = simulate(t, *arrivals, spec, o);
  REQUIRE(out);
  return *out;
}

}  // namespace

TEST_CASE("nodes that cache nothing take a system prompt from the pool") {
  const trace::Trace t = turns(4, 32, 1000);
  SimOptions o;
  o.prefill = 2;
  o.decode = 1;
  o.cache_tokens = 0;
  CHECK(run(t, o).hit_full_blocks == 0);
  o.pool_tokens = 16'000;
  const SimResult r = run(t, o);
  CHECK(r.hit_full_blocks == 96);
  CHECK(r.pool_reads == 3);
  CHECK(r.pool_blocks == 96);
  CHECK(*r.requests[0].cached == 0);
  for (size_t i = 1; i < 4; ++i) {
    CHECK(*r.requests[i].cached == 512);
    CHECK(*r.requests[i].prefill_ms == doctest::Approx(2));
    CHECK(*r.requests[i].queue_ms == doctest::Approx(50));  // a message's overhead
    const double read_ms = *r.requests[i].transfer_ms - *r.requests[0].transfer_ms;
    CHECK(read_ms > 0.5);  // a round trip, and the bytes
    CHECK(read_ms < 10);
  }
  // The conductor expected it: its predictions are right at once.
  CHECK(*r.requests[1].predicted_ttft_ms < *r.requests[0].predicted_ttft_ms - 200);

  o.pool_reuse = "never";
  const SimResult never = run(t, o);
  CHECK(never.hit_full_blocks == 0);
  CHECK(never.pool_reads == 0);
  CHECK(never.pool_put_bytes == r.pool_put_bytes);
}

TEST_CASE("a slow pool is read only if computing is slower") {
  const trace::Trace t = turns(30, 32, 1000);
  SimOptions o;
  o.prefill = 2;
  o.decode = 1;
  o.cache_tokens = 0;
  o.pool_tokens = 16'000;
  o.nic_gbps = 0.33;  // a block takes four times as long as computing it
  const SimResult aware = run(t, o, 6e-6);
  CHECK(run(t, o, 60e-6).pool_reads == 29);  // and here less than half as long
  o.pool_reuse = "always";
  const SimResult always = run(t, o, 6e-6);
  CHECK(always.pool_reads > 20);
  CHECK(aware.pool_reads < always.pool_reads / 2);
}

TEST_CASE("a prompt waits for a prefix that comes for another one, and shares it") {
  trace::Trace t = turns(6, 32, 0);
  for (size_t i = 1; i < t.records.size(); ++i) t.records[i].timestamp_ms = 2000;
  SimOptions o;
  o.prefill = 2;
  o.decode = 1;
  o.policy.policy = "rr";
  o.pool_tokens = 16'000;
  o.nic_gbps = 0.33;  // 13 ms for the prefix
  const SimResult r = run(t, o);
  CHECK(r.pool_reads == 1);
  CHECK(r.pool_blocks == 32);
  CHECK(r.hit_full_blocks == 5 * 32);
  for (size_t i = 1; i < 6; ++i) {
    CHECK(r.requests[i].prefill == (i % 2 == 0 ? "p0" : "p1"));
    CHECK(*r.requests[i].cached == 512);
    CHECK(*r.requests[i].queue_ms > (i % 2 == 0 || i == 1 ? 49 : 55));
    CHECK(*r.requests[i].queue_ms < 80);
  }
}

// Sixteen prompts come at once, and the pool has all but the end of each: on one node's NIC they
// share, the first eight have theirs in half of the time that all take.
TEST_CASE("a node loads as many prefixes at a time as a live worker does") {
  constexpr uint64_t kPrompts = 16, kBlocks = 64;
  trace::Trace t;
  t.block_tokens = 16;
  for (uint64_t i = 0; i < 2 * kPrompts; ++i) {
    trace::TraceRequest r;
    r.timestamp_ms = 2000 * std::min(i, kPrompts);
    for (uint64_t k = 0; k < kBlocks; ++k) r.hash_ids.push_back(1000 * (i % kPrompts) + k);
    r.hash_ids.push_back(100'000 + i);
    r.input_length = 16 * r.hash_ids.size() - 12;
    r.output_length = 1;
    t.records.push_back(std::move(r));
  }
  SimOptions o;
  o.prefill = 1;
  o.decode = 7;
  o.cache_tokens = 0;
  o.pool_tokens = 100'000;
  o.pool_reuse = "always";
  // A prefix takes a tenth of a second, but for the blocks on the node itself.
  o.nic_gbps = 8 * 16 * kBlocks * static_cast<double>(cost::tiny().kv_bytes_per_token()) / 1e8;
  const SimResult r = run(t, o);
  CHECK(r.pool_reads == kPrompts);
  size_t at_once = 0;
  for (size_t i = kPrompts; i < 2 * kPrompts; ++i) {
    CHECK(*r.requests[i].cached == 16 * kBlocks);
    at_once += *r.requests[i].queue_ms < 400;
  }
  CHECK(at_once == serve::PrefillQueue::kLoadsMax);
}

TEST_CASE("a pool without room for a block is refused") {
  const trace::Trace t = turns(2, 2, 1000);
  const auto arrivals = trace::schedule(t, {});
  REQUIRE(arrivals);
  SimOptions o;
  o.pool_tokens = 15;
  const auto bad = simulate(t, *arrivals, cost::tiny(), o);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == Code::kInvalid);
  CHECK(bad.error().what ==
        "--pool-tokens 15: want at least 16, a block of the trace, or 0 for no pool");
  o.pool_tokens = 16;
  CHECK(simulate(t, *arrivals, cost::tiny(), o));
}

TEST_CASE("coupled nodes have no pool") {
  SimOptions o;
  o.engine = "coupled";
  o.pool_tokens = 1000;
  const auto bad = check(o);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().what.find("--pool-tokens 1000") != std::string::npos);
}
