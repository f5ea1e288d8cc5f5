#include "sim/cluster/cluster.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "base/random.h"
#include "sim/paper/paper.h"
#include "sim/study/study.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::sim;
using namespace std::chrono_literals;

namespace {

trace::TraceRequest record(uint64_t ms, std::vector<uint64_t> ids, uint64_t block, uint64_t missing,
                           uint64_t output) {
  trace::TraceRequest r;
  r.timestamp_ms = ms;
  r.input_length = ids.size() * block - missing;
  r.output_length = output;
  r.hash_ids = std::move(ids);
  return r;
}

trace::Trace random_trace(uint64_t seed, size_t n) {
  Random random(seed);
  trace::Trace t;
  t.name = "random";
  uint64_t next = 1, ms = 0;
  for (size_t i = 0; i < n; ++i) {
    ms += random.below(400);
    std::vector<uint64_t> ids = {0};
    if (!t.records.empty() && random.chance(0.6)) {
      ids = t.records[random.below(t.records.size())].hash_ids;
      if (ids.size() > 1) ids.pop_back();
    }
    for (uint64_t k = 1 + random.below(12); k > 0; --k) ids.push_back(next++);
    t.records.push_back(record(ms, ids, 512, random.below(512), random.below(200)));
  }
  return t;
}

SimResult run(const trace::Trace& t, const SimOptions& o, const cost::ModelSpec& spec) {
  const auto arrivals = trace::schedule(t, {});
  REQUIRE(arrivals);
  const auto out = simulate(t, *arrivals, spec, o);
  REQUIRE(out);
  return *out;
}

cost::ModelSpec large() {
  const auto here = std::filesystem::path(__FILE__).parent_path();
  const auto spec = cost::load_spec(
      (here / "../../../configs/models/llama3-70b.json").lexically_normal().string());
  REQUIRE(spec);
  return *spec;
}

}  // namespace

// The scenario of a shared system prompt: 32 blocks of 16 tokens, three requests that add a
// question of 4 tokens each, half a millisecond a token.
TEST_CASE("a system prompt is computed once: 32 misses, then 32 and 32 hits, 508 ms saved") {
  trace::Trace t;
  t.block_tokens = 16;
  for (uint64_t i = 0; i < 3; ++i) {
    std::vector<uint64_t> ids;
    for (uint64_t k = 0; k < 32; ++k) ids.push_back(k);
    ids.push_back(100 + i);
    t.records.push_back(record(i * 1000, ids, 16, 12, 1));
  }
  cost::ModelSpec spec = cost::tiny();
  spec.cost.c0 = spec.cost.c2 = 0;
  spec.cost.c1 = 0.5e-3;
  spec.cost.load_bytes_per_s = 1e18;
  SimOptions o;
  o.prefill = 2;
  o.decode = 1;
  const SimResult r = run(t, o, spec);
  CHECK(r.full_blocks == 96);
  CHECK(r.hit_full_blocks == 64);
  CHECK(*r.requests[0].cached == 0);
  CHECK(*r.requests[1].cached == 512);
  CHECK(*r.requests[2].cached == 512);
  CHECK(*r.requests[0].prefill_ms == doctest::Approx(258));
  CHECK(*r.requests[1].prefill_ms == doctest::Approx(2));
  // Saved, as the scenario counts it: what the system prompt alone would have taken, less what the
  // two requests took; with their questions counted on both sides it is 512 ms.
  const double system = *r.requests[0].prefill_ms - *r.requests[1].prefill_ms;
  double saved = 0;
  for (const size_t i : {1u, 2u}) saved += system - *r.requests[i].prefill_ms;
  CHECK(saved == doctest::Approx(508));
  CHECK(3 * 258.0 - r.prefill_busy_s * 1e3 == doctest::Approx(512));
}

TEST_CASE("no request is lost, parts add up, and a seed decides everything") {
  const cost::ModelSpec spec = large();
  for (uint64_t seed = 1; seed <= fewer(12); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const trace::Trace t = random_trace(seed, 250);
    SimOptions o;
    o.engine = kEngines[random.below(3)];
    o.prefill = 1 + random.below(4);
    o.decode = 1 + random.below(4);
    o.cache_tokens = random.chance(0.2) ? 0 : 60'000 + random.below(200'000);
    const char* policies[] = {"kvcache", "local", "load", "count", "p2c", "random", "rr"};
    o.policy.policy = policies[random.below(7)];
    o.policy.seed = seed;
    o.admission.admission = sched::kAdmissions[random.below(4)];
    o.admission.ttft_slo = 20s;
    o.admission.tbt_slo = 100ms;
    o.prefill_order = random.chance(0.5) ? "fcfs" : "srpf";
    o.pd_control = random.chance(0.3);
    o.sample = 1s;
    CAPTURE(o.engine);
    CAPTURE(o.policy.policy);
    const SimResult a = run(t, o, spec), b = run(t, o, spec);
    REQUIRE(a.requests.size() == t.records.size());
    for (size_t i = 0; i < a.requests.size(); ++i) {
      CAPTURE(i);
      const trace::RequestResult& r = a.requests[i];
      CHECK(trace::request_line(r, true) == trace::request_line(b.requests[i], true));
      if (r.status != trace::Status::kOk) continue;
      CHECK(*r.ttft_ms ==
            doctest::Approx(*r.queue_ms + *r.prefill_ms + *r.transfer_ms + *r.first_step_ms)
                .epsilon(1e-6));
      CHECK(*r.e2e_ms >= *r.ttft_ms);
      CHECK(*r.cached < r.input);
      CHECK(*r.cached % 512 == 0);
      CHECK(r.output == std::max<uint64_t>(t.records[i].output_length, 1));
    }
    CHECK(a.events == b.events);
    CHECK(a.timeline.size() == b.timeline.size());
    CHECK(a.hit_full_blocks <= a.full_blocks);
  }
}

TEST_CASE("with any faults, every request ends once, and the same way each time") {
  const cost::ModelSpec spec = large();
  for (uint64_t seed = 1; seed <= fewer(12); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const trace::Trace t = random_trace(seed + 100, 250);
    SimOptions o;
    o.engine = kEngines[random.below(3)];
    const bool apart = o.engine == "disaggregated";
    o.cpp_group = apart && random.chance(0.3) ? 2 : 1;
    o.prefill = (1 + random.below(3)) * o.cpp_group;
    o.decode = 1 + random.below(3);
    o.cache_tokens = 60'000 + random.below(200'000);
    o.ssd_tokens = random.chance(0.5) ? 100'000 : 0;
    o.vram_tokens = random.chance(0.5) ? 20'000 : 0;
    o.cache_rule = kCacheRules[random.below(kCacheRules.size())];
    o.rack_nodes = random.below(3);
    o.rack_latency = o.rack_nodes > 0 ? 7ms : 0ms;
    o.pd_control = apart && o.cpp_group == 1 && random.chance(0.3);
    o.prefill_order = random.chance(0.5) ? "fcfs" : "srpf";
    o.pool_tokens = apart && random.chance(0.5) ? 30'000 + random.below(60'000) : 0;
    std::map<std::string, uint64_t> back;
    for (uint64_t i = 0; i < 8; ++i) {
      const uint64_t groups = o.prefill / o.cpp_group;
      const std::string node = !apart ? "n" + std::to_string(random.below(o.prefill + o.decode))
                               : random.chance(0.6) ? "p" + std::to_string(random.below(groups))
                                                    : "d" + std::to_string(random.below(o.decode));
      const uint64_t from = back[node] + random.below(20);
      back[node] = from + 1 + random.below(9);
      o.fault.push_back(node + "@" + std::to_string(from) + "s-" + std::to_string(back[node]) +
                        "s");
    }
    o.sample = 1s;
    CAPTURE(o.engine);
    const SimResult a = run(t, o, spec), b = run(t, o, spec);
    CHECK(a.failures > 0);
    CHECK(a.restarted == b.restarted);
    CHECK(a.events == b.events);
    uint64_t ok = 0;
    for (size_t i = 0; i < a.requests.size(); ++i) {
      CAPTURE(i);
      const trace::RequestResult& r = a.requests[i];
      CHECK(trace::request_line(r, true) == trace::request_line(b.requests[i], true));
      ok += r.status == trace::Status::kOk;
      if (r.status != trace::Status::kOk) {
        CHECK((r.reason == "no_capacity" || r.reason == "worker_failed"));
        continue;
      }
      CHECK(*r.ttft_ms ==
            doctest::Approx(*r.queue_ms + *r.prefill_ms + *r.transfer_ms + *r.first_step_ms)
                .epsilon(1e-6));
      CHECK(r.output == std::max<uint64_t>(t.records[i].output_length, 1));
    }
    CHECK(ok > 20);
  }
}

TEST_CASE("a request restarts on another node when its node fails, and only then") {
  const cost::ModelSpec spec = large();
  trace::Trace t;
  for (uint64_t i = 0; i < 8; ++i) {
    std::vector<uint64_t> ids;
    for (uint64_t k = 0; k < 40; ++k) ids.push_back(100 * i + k);
    t.records.push_back(record(i * 10'000, ids, 512, 0, 400));
  }
  SimOptions o;
  o.prefill = o.decode = 2;
  const SimResult before = run(t, o, spec);
  o.fault = {"p0@1s-5s"};  // computes the first request
  const SimResult p = run(t, o, spec);
  CHECK(p.restarted == 1);
  CHECK(p.requests[0].prefill == "p1");
  CHECK(*p.requests[0].ttft_ms == doctest::Approx(*before.requests[0].ttft_ms + 1000));
  CHECK(p.wasted_prefill_s == doctest::Approx(1 - to_seconds(o.overhead)));
  for (size_t i = 1; i < 8; ++i) CHECK(*p.requests[i].ttft_ms == *before.requests[i].ttft_ms);
  // What was answering is lost, as its client has tokens; others take the node no more.
  o.fault = {before.requests[0].decode + "@6s"};
  const SimResult d = run(t, o, spec);
  CHECK(d.restarted == 0);
  CHECK(d.requests[0].status == trace::Status::kFailed);
  CHECK(d.requests[0].reason == "worker_failed");
  for (size_t i = 1; i < 8; ++i) {
    CHECK(d.requests[i].status == trace::Status::kOk);
    CHECK(d.requests[i].decode != before.requests[0].decode);
  }
  // A decode node that goes while the prompt is computed: it begins anew.
  o.fault = {before.requests[0].decode + "@1s"};
  const SimResult early = run(t, o, spec);
  CHECK(early.restarted == 1);
  CHECK(early.requests[0].status == trace::Status::kOk);
  CHECK(early.wasted_prefill_s == doctest::Approx(1 - to_seconds(o.overhead)));
  o.fault = {"p0@1s", "p1@2s"};
  const SimResult none = run(t, o, spec);
  CHECK(none.requests[0].reason == "worker_failed");  // twice
  for (size_t i = 1; i < 8; ++i) CHECK(none.requests[i].reason == "no_capacity");
}

TEST_CASE("invalid faults are refused by name") {
  const auto error = [](std::vector<std::string> fault) {
    SimOptions o;
    o.prefill = o.decode = 2;
    o.fault = std::move(fault);
    const auto ok = check(o);
    return ok ? std::string() : ok.error().what;
  };
  CHECK(error({"p1@1s", "d0@5m-2h"}) == "");
  CHECK(error({"p2@1s"}) == "--fault p2@1s: no node 'p2': there are p0 to p1 and d0 to d1");
  CHECK(error({"n0@1s"}).find("no node 'n0'") != std::string::npos);
  CHECK(error({"p0"}).find("want NODE@FROM") != std::string::npos);
  CHECK(error({"@1s"}).find("no node ''") != std::string::npos);
  CHECK(error({"p0@soon"}).find("--fault p0@soon") == 0);
  CHECK(error({"p0@5s-4s"}).find("back before it fails") != std::string::npos);
  CHECK(error({"p0@5s-9s", "p1@6s", "p0@9s"}) == "");
  CHECK(error({"p0@5s-9s", "p0@8s-12s"}).find("--fault p0@8s-12s: the node is down then") == 0);
  CHECK(error({"p0@5s", "p0@8s"}).find("down then already") != std::string::npos);
}

TEST_CASE("a group of nodes computes a long prompt sooner, and a short one hardly") {
  const cost::ModelSpec spec = large();
  const auto prefill_ms = [&](uint64_t blocks, uint64_t group) {
    trace::Trace t;
    std::vector<uint64_t> ids(blocks);
    for (uint64_t k = 0; k < blocks; ++k) ids[k] = k;
    t.records.push_back(record(0, ids, 512, 0, 1));
    SimOptions o;
    o.prefill = 4;
    o.decode = 1;
    o.cpp_group = group;
    return *run(t, o, spec).requests[0].prefill_ms;
  };
  CHECK(prefill_ms(200, 4) < 0.27 * prefill_ms(200, 1));
  CHECK(prefill_ms(200, 4) > 0.25 * prefill_ms(200, 1));
  CHECK(prefill_ms(2, 4) > 0.6 * prefill_ms(2, 1));  // a single chunk goes from stage to stage
}

TEST_CASE("the predicted TTFT of a short prompt counts that it overtakes") {
  trace::Trace t;
  uint64_t next = 0;
  const auto prompt = [&](uint64_t ms, uint64_t blocks) {
    std::vector<uint64_t> ids(blocks);
    for (uint64_t& id : ids) id = next++;
    t.records.push_back(record(ms, ids, 512, 1, 1));
  };
  prompt(0, 128);
  prompt(100, 128);  // waits for the first
  prompt(200, 8);    // for the first only
  SimOptions o;
  o.prefill = o.decode = 1;
  for (const char* order : {"fcfs", "srpf"}) {
    CAPTURE(order);
    o.prefill_order = order;
    const SimResult r = run(t, o, large());
    const bool first = *r.requests[2].queue_ms < *r.requests[1].queue_ms;
    CHECK(first == (o.prefill_order == "srpf"));
    // Of a prompt that runs the conductor knows the mean chunk.
    CHECK(*r.requests[2].ttft_ms ==
          doctest::Approx(*r.requests[2].predicted_ttft_ms).epsilon(first ? 0.05 : 0.02));
  }
}

TEST_CASE("predictions learn what a pipeline, an SSD and racks add") {
  const cost::ModelSpec spec = large();
  trace::Trace t;
  for (uint64_t i = 0; i < 60; ++i) {  // each of three prompts many times, an hour apart
    std::vector<uint64_t> ids;
    for (uint64_t k = 0; k < 60; ++k) ids.push_back(100 * (i % 3) + k);
    ids.push_back(1000 + i);
    t.records.push_back(record(i * 3'600'000, ids, 512, 0, 2));
  }
  SimOptions o;
  o.prefill = 4;
  o.decode = 2;
  const auto held = [&] {
    const SimResult r = run(t, o, spec);
    for (size_t i = 45; i < r.requests.size(); ++i)
      CHECK(*r.requests[i].ttft_ms ==
            doctest::Approx(*r.requests[i].predicted_ttft_ms).epsilon(0.05));
    return r;
  };
  held();
  o.cpp_group = 4;
  held();
  o.cpp_group = 1;
  o.rack_nodes = 1;
  o.rack_latency = 900ms;
  held();
  o.rack_nodes = 0;
  o.rack_latency = 0ms;
  o.prefill = 1;
  o.cache_tokens = 40'000;  // one prompt
  o.ssd_tokens = 400'000;
  o.ssd_bytes_per_s = 2e9;
  const SimResult r = held();
  CHECK(r.hit_ssd_blocks > 0);
}

TEST_CASE("a prompt longer than any cache is refused, and only that") {
  trace::Trace t = random_trace(3, 20);
  std::vector<uint64_t> ids(400);
  for (uint64_t k = 0; k < 400; ++k) ids[k] = 10'000 + k;
  t.records.push_back(record(t.records.back().timestamp_ms, ids, 512, 0, 10));
  SimOptions o;
  o.prefill = o.decode = 2;
  o.cache_tokens = 100'000;
  const SimResult r = run(t, o, cost::tiny());
  for (size_t i = 0; i < r.requests.size(); ++i)
    CHECK((r.requests[i].status == trace::Status::kOk) == (i + 1 < r.requests.size()));
  CHECK(r.requests.back().reason == "context_length_exceeded");
  CHECK(r.requests.back().http == 400);
}

TEST_CASE("nodes move to the side that needs them, one at a time, and finish what they have") {
  // Long prompts, one token: all prefill. Then short prompts with long answers: all decode.
  trace::Trace t;
  uint64_t next = 0;
  for (uint64_t i = 0; i < 700; ++i) {
    const bool night = i >= 300;
    std::vector<uint64_t> ids;
    for (uint64_t k = 0; k < (night ? 1u : 40u); ++k) ids.push_back(next++);
    t.records.push_back(record(i * 400, ids, 512, 0, night ? 600 : 1));
  }
  SimOptions o;
  o.prefill = o.decode = 4;
  o.pd_control = true;
  o.sample = 10s;
  const SimResult r = run(t, o, large());
  REQUIRE(r.moves.size() >= 2);
  CHECK(r.moves.front().to == "prefill");
  CHECK(r.moves.back().to == "decode");
  for (const Sample& s : r.timeline) {
    CHECK(s.prefill_nodes + s.decode_nodes == 8);
    CHECK(s.prefill_nodes >= 1);
    CHECK(s.decode_nodes >= 1);
  }
  for (const auto& q : r.requests) CHECK(q.status == trace::Status::kOk);
}

TEST_CASE("nodes join and leave by --machines, and no request is lost when one leaves") {
  trace::Trace t = random_trace(5, 600);
  SimOptions o;
  o.prefill = o.decode = 4;
  o.pd_control = true;
  o.machines = {"3@0s", "8@40s", "2@80s"};
  o.queue_timeout = 0s;  // two nodes are too few
  o.sample = 1s;
  const SimResult r = run(t, o, large());
  for (const auto& q : r.requests) CHECK(q.status == trace::Status::kOk);
  std::vector<uint64_t> seen;
  for (const Sample& s : r.timeline) {
    CHECK(s.prefill_nodes >= 1);
    CHECK(s.decode_nodes >= 1);
    seen.push_back(s.prefill_nodes + s.decode_nodes);
  }
  REQUIRE(seen.size() > 90);
  CHECK(seen[20] == 3);
  CHECK(seen[60] == 8);
  CHECK(*std::min_element(seen.begin() + 81, seen.end()) == 2);
  uint64_t away = 0;
  for (const Move& m : r.moves) away += m.to == "away";
  CHECK(away == 5 + 6);
}

TEST_CASE("requests wait for room on the decode nodes, and those behind go first if they fit") {
  trace::Trace t;
  uint64_t next = 0;
  const auto prompt = [&](uint64_t ms, uint64_t blocks, uint64_t output) {
    std::vector<uint64_t> ids(blocks);
    for (uint64_t& id : ids) id = next++;
    t.records.push_back(record(ms, ids, 512, 0, output));
  };
  prompt(0, 10, 2000);   // about a minute
  prompt(100, 12, 10);   // finds no room
  prompt(200, 2, 10);    // does, and ends before the first
  prompt(300, 400, 10);  // never
  SimOptions o;
  o.prefill = 2;
  o.decode = 1;
  o.decode_tokens = 20 * 512;
  const SimResult wait = run(t, o, large());
  CHECK(wait.requests[0].status == trace::Status::kOk);
  CHECK(wait.requests[1].http == 503);  // after --queue-timeout
  CHECK(wait.requests[1].reason == "no_capacity");
  CHECK(*wait.requests[2].ttft_ms < 5000);
  o.queue_timeout = 0s;
  const SimResult all = run(t, o, large());
  CHECK(all.requests[1].status == trace::Status::kOk);
  CHECK(*all.requests[1].ttft_ms > *all.requests[0].e2e_ms - 100);
  CHECK(all.requests[3].http == 400);
}

TEST_CASE("a prompt that waits longer than --prefill-timeout begins anew, then fails") {
  trace::Trace t;
  uint64_t next = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<uint64_t> ids(240);  // 20 seconds each
    for (uint64_t& id : ids) id = next++;
    t.records.push_back(record(i * 100, ids, 512, 0, 10));
  }
  SimOptions o;
  o.prefill = o.decode = 1;
  o.prefill_timeout = 40s;
  const SimResult r = run(t, o, large());
  CHECK(r.restarted >= 2);
  CHECK(r.requests[0].status == trace::Status::kOk);
  CHECK(r.requests[3].http == 504);
  CHECK(r.requests[3].reason == "upstream_timeout");
}

TEST_CASE("invalid options are refused with the valid range") {
  const trace::Trace t = random_trace(1, 5);
  const auto error = [&](auto change) {
    StudyOptions o;
    change(o);
    const auto runs = run_study(t, cost::tiny(), o);
    return runs ? std::string() : runs.error().what;
  };
  CHECK(error([](auto& o) { o.sim.prefill = 0; }).find("at least one node of each") !=
        std::string::npos);
  CHECK(error([](auto& o) { o.sim.rack_latency = 5ms; }).find("--rack-nodes") != std::string::npos);
  CHECK(error([](auto& o) { o.sim.cache_rule = "semantic"; }).find("has a class") !=
        std::string::npos);
  CHECK(error([](auto& o) { o.sim.machines = {"12@8h"}; }).find("--pd-control") !=
        std::string::npos);
  CHECK(error([](auto& o) {
          o.sim.pd_control = true;
          o.sim.machines = {"17@8h"};
        }).find("from 2 to the 16") != std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"polcy=kvcache"}; }).find("policy") != std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"policy=best"}; }).find("policy") != std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"speed=-1"}; }).find("number from 0") != std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"qps=inf"}; }).find("number from 0") != std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"pd=4"}; }).find("PREFILL:DECODE") != std::string::npos);
  CHECK(error([](auto& o) {
          o.sweep = {"speed=1", "speed=2"};
        }).find("twice") != std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"pd=2:2,2:2"}; }).find("pd=2:2 is given twice") !=
        std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"pd=0:2"}; }).find("pd=0:2: --prefill 0, --decode 2") !=
        std::string::npos);
  CHECK(error([](auto& o) {
          o.sweep = {"decode=2,3", "pd=2:2"};
        }).find("both set the number of decode nodes") != std::string::npos);
  CHECK(error([](auto& o) {
          o.sweep = {"speed=1,2", "qps=1,2"};
        }).find("both set when requests come") != std::string::npos);
  CHECK(error([](auto& o) {
          o.sweep = {"speed=1,2"};
          o.play.qps = 3;
        }).find("both set when requests come") != std::string::npos);
  CHECK(error([](auto& o) { o.sweep = {"8"}; }).find("NAME=VALUE") != std::string::npos);
  CHECK(error([](auto& o) { o.repeat = 2000; }).find("more than 1000") != std::string::npos);
}

TEST_CASE("a sweep runs every combination, and repeats have intervals") {
  const trace::Trace t = random_trace(1, 60);
  StudyOptions o;
  o.sim.prefill = o.sim.decode = 2;
  o.sweep = {"policy=kvcache,random", "pd=1:3", "2:2"};
  o.repeat = 3;
  o.play.qps = 4;
  const auto runs = run_study(t, large(), o);
  REQUIRE(runs);
  CHECK(runs->size() == 12);
  CHECK((*runs)[3].setting == Setting{{"policy", "kvcache"}, {"pd", "2:2"}});
  CHECK(*(*runs)[3].info.prefill_nodes == 2);
  CHECK(*(*runs)[0].info.prefill_nodes == 1);
  const Json json = study_json(*runs, o);
  CHECK(json["points"].size() == 4);
  CHECK(json["points"][0]["figures"]["ttft_mean_s"]["ci95"] > 0);
  CHECK(dump_json(json) == dump_json(study_json(*run_study(t, large(), o), o)));
  const Interval i = interval({1, 2, 3});
  CHECK(i.mean == doctest::Approx(2));
  CHECK(i.half == doctest::Approx(4.303 / std::sqrt(3.0)));
}

TEST_CASE("refusals rank as published on the recorded trace, and prediction damps the swing") {
  const char* shared = std::getenv("MC_TEST_SHARED");
  const std::string path = std::string(shared ? shared : "") + "/traces/conversation_trace.jsonl";
  if (!shared || !std::filesystem::exists(path)) {
    std::printf("skipped: needs conversation_trace.jsonl; set MC_TEST_SHARED\n");
    return;
  }
  // Under sanitizers a part of it, whose figures say nothing.
  const auto t = trace::read_trace(path, {.limit = kSlow > 1 ? 2000u : 0u});
  REQUIRE(t);
  StudyOptions o;
  o.play.speed = 2;
  o.sim.admission.ttft_slo = 30s;
  o.sweep = {"tbt-slo=200ms,300ms", "admission=baseline,early,predict"};
  const auto runs = run_study(*t, large(), o);
  REQUIRE(runs);
  for (const size_t at : {0u, 3u}) {
    if (kSlow > 1) break;
    const Run &baseline = (*runs)[at], &early = (*runs)[at + 1], &predict = (*runs)[at + 2];
    CHECK(baseline.summary.rejected > early.summary.rejected);
    CHECK(early.summary.rejected > predict.summary.rejected);
    CHECK(baseline.result.wasted_prefill_s > 1000);
    CHECK(early.result.wasted_prefill_s == 0);
    CHECK(predict.result.wasted_prefill_s == 0);
  }
  PaperInput in;
  in.spec = large();
  in.conversation = *t;
  const auto swing = reproduce(in, {"fig6-7"});
  REQUIRE(swing);
  if (kSlow > 1) return;
  const PaperFigure& f = (*swing)[0];
  REQUIRE(f.claims.size() == 4);
  for (size_t i = 0; i < 2; ++i) CHECK_MESSAGE(f.claims[i].holds, f.claims[i].what);
  // By a twentieth, where the published curves show more; the decode load hardly swings.
  const auto ours = [&](const std::string& label) {
    for (const auto& row : f.rows)
      if (row.what == label) return *row.ours;
    FAIL(label);
    return 0.;
  };
  CHECK(ours("predict: deviation of the prefill load") <
        0.97 * ours("early: deviation of the prefill load"));
}

TEST_CASE("policies rank as published on the recorded trace, and caches never overflow") {
  const char* shared = std::getenv("MC_TEST_SHARED");
  const std::string path = std::string(shared ? shared : "") + "/traces/conversation_trace.jsonl";
  if (!shared || !std::filesystem::exists(path)) {
    std::printf("skipped: needs conversation_trace.jsonl; set MC_TEST_SHARED\n");
    return;
  }
  // Under sanitizers a part of it, whose figures say nothing.
  const auto t = trace::read_trace(path, {.limit = fewer(5000)});
  REQUIRE(t);
  StudyOptions o;
  o.sim.prefill = 6;
  o.sim.decode = 10;
  o.sweep = {"policy=kvcache,local,count,random"};
  const auto runs = run_study(*t, large(), o);
  REQUIRE(runs);
  double before = 0;
  for (const Run& r : *runs) {
    CAPTURE(r.setting[0].second);
    CHECK(r.summary.ok == fewer(5000));
    if (kSlow == 1) CHECK(r.summary.ttft_ms.mean() > before);
    before = r.summary.ttft_ms.mean();
  }
}
