// Which side a simulated node is on: it is chosen as a live conductor chooses.
#include <doctest/doctest.h>

#include <filesystem>

#include "sim/cluster/cluster.h"

namespace mc::sim {
namespace cluster_roles_test {
namespace {

using namespace std::chrono_literals;

void add(trace::Trace& t, uint64_t ms, uint64_t id, uint64_t output) {
  trace::TraceRequest r;
  r.timestamp_ms = ms;
  r.input_length = 512;
  r.output_length = output;
  r.hash_ids = {id};
  t.records.push_back(std::move(r));
}

Result<SimResult> run(const trace::Trace& t, const SimOptions& o) {
  const auto here = std::filesystem::path(__FILE__).parent_path();
  const auto spec = cost::load_spec(
      (here / "../../../configs/models/llama3-70b.json").lexically_normal().string());
  REQUIRE(spec);
  const auto arrivals = trace::schedule(t, {});
  REQUIRE(arrivals);
  return simulate(t, *arrivals, *spec, o);
}

SimOptions controlled() {
  SimOptions o;
  o.prefill = o.decode = 4;
  o.pd_control = true;
  o.sample = 1s;
  return o;
}

}  // namespace

TEST_CASE("nodes that join an idle cluster go to the smaller side") {
  trace::Trace t;
  add(t, 0, 1, 1);
  add(t, 100'000, 2, 1);
  SimOptions o = controlled();
  o.machines = {"3@10s", "8@40s"};
  const auto r = run(t, o);
  REQUIRE(r);
  REQUIRE(r->timeline.size() > 60);
  CHECK(r->timeline[30].prefill_nodes + r->timeline[30].decode_nodes == 3);
  CHECK(r->timeline[60].prefill_nodes == 4);
  CHECK(r->timeline[60].decode_nodes == 4);
}

TEST_CASE("the node that leaves is the one with the least to finish") {
  trace::Trace t;
  for (uint64_t i = 0; i < 3; ++i) add(t, i, i, 2000);  // about a minute each, on three of four
  SimOptions o = controlled();
  o.prefill = 1;
  o.machines = {"4@20s"};
  const auto r = run(t, o);
  REQUIRE(r);
  REQUIRE(r->moves.size() == 1);
  REQUIRE(r->timeline.size() > 21);
  CHECK(r->moves[0].node[0] == 'd');
  CHECK(r->timeline[21].prefill_nodes + r->timeline[21].decode_nodes == 4);  // it had nothing
}

TEST_CASE("a node that fails while it moves, and is back at once, holds up no other") {
  trace::Trace t;
  for (uint64_t i = 0; i < 4; ++i) add(t, i, i, 4000);  // minutes each, one on each decode node
  for (uint64_t i = 0; i < 40; ++i) {
    add(t, 1000 + i, 0, 1);  // 20 seconds to compute
    trace::TraceRequest& r = t.records.back();
    r.hash_ids.clear();
    for (uint64_t k = 0; k < 240; ++k) r.hash_ids.push_back(1000 * (i + 1) + k);
    r.input_length = 512 * r.hash_ids.size();
  }
  SimOptions o = controlled();
  o.pd.interval = 2s;
  o.pd.cooldown = 1s;
  const auto moved = run(t, o);
  REQUIRE(moved);
  REQUIRE_FALSE(moved->moves.empty());
  const Move first = moved->moves[0];
  CHECK(first.to == "prefill");
  const auto ms = static_cast<int>(first.at_s * 1e3);
  o.fault = {strf("%s@%dms-%dms", first.node.c_str(), ms + 300, ms + 600)};
  const auto failed = run(t, o);
  REQUIRE(failed);
  REQUIRE(failed->moves.size() > 1);
  CHECK(failed->moves[0].node == first.node);
  CHECK(failed->moves[1].at_s < first.at_s + 10);
}

TEST_CASE("--machines takes no engines that have no sides") {
  SimOptions o = controlled();
  o.engine = "coupled";
  o.machines = {"4@20s"};
  trace::Trace t;
  add(t, 0, 1, 1);
  const auto r = run(t, o);
  REQUIRE_FALSE(r);
  CHECK(r.error().what.find("have no side") != std::string::npos);
}

}  // namespace cluster_roles_test
}  // namespace mc::sim
