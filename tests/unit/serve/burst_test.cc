// A burst of equal prompts at a conductor and real workers: one computes, the others wait for it.
#include "base/json.h"
#include "conductor_fakes.h"
#include "pair.h"
#include "serve/runtime/heartbeat.h"

namespace mc::serve {
namespace burst_test {
namespace {

// Two prefill and two decode workers that have joined a conductor.
struct Burst {
  Burst() : a(loop, workers(), "a"), b(loop, workers(), "b") {
    ConductorOptions o = test::quick();
    o.worker_ttl = o.step_timeout = o.prefill_timeout = o.token_timeout = kPatience;
    o.queue_timeout = kPatience;
    conductor = *Conductor::open(loop, o, 42, metrics);
    for (Pair* pair : {&a, &b}) {
      const std::string number = pair == &a ? "0" : "1";
      join("p" + number, "prefill", 7, *pair->p_server, &pair->prefill->cache(),
           [pair] { return pair->prefill->load(); });
      join("d" + number, "decode", pair->d_xfer->generation().n, *pair->d_server, nullptr,
           [pair] { return pair->decode->load(); });
    }
    REQUIRE(a.until([&] { return conductor->not_ready().empty(); }));
    REQUIRE(a.until([&] { return conductor->health()["unsynced_workers"] == 0; }));
    REQUIRE(a.until([&] { return conductor->cluster()["nodes"].size() == 4; }));
  }
  static constexpr Duration kPatience = 20s * kSlow;  // of a busy machine
  static PairOptions workers() {
    return {.prefill_blocks = 4096, .decode_blocks = 8192, .send_timeout = kPatience};
  }
  void join(const std::string& name, const char* role, uint64_t epoch, rpc::Server& server,
            const BlockManager* cache, const std::function<WorkerLoad()>& load) {
    Heartbeat me;
    me.node = name;
    me.role = role;
    me.epoch = epoch;
    me.control = server.address();
    me.model = "tiny";
    me.block_tokens = kBlock;
    me.fingerprint = cost::tiny().fingerprint(kBlock);
    me.context_max = 262144;
    me.chunk_tokens = 64;
    beats.push_back(*Heartbeats::open(
        loop, me, {conductor->control()}, 20ms, cache,
        [load](Heartbeat& beat, const std::string&) { beat.load = load(); }, metrics));
  }
  uint64_t counted(const char* name) {
    return a.p_metrics.counter(name, "").value() + b.p_metrics.counter(name, "").value();
  }

  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  Pair a, b;
  std::unique_ptr<Conductor> conductor;
  std::vector<std::unique_ptr<Heartbeats>> beats;
};

}  // namespace

TEST_CASE("F77: of ten equal prompts at once one is computed, on one worker, with equal answers") {
  Burst s;
  const auto prompt = prompt_of(750 * kBlock + 5, 1);
  const size_t reachable = (prompt.size() - 1) / kBlock * kBlock;
  test::Heard heard[10];
  for (int i = 0; i < 10; ++i) {
    GenerateRequest g;
    g.id = "r" + std::to_string(i);
    g.prompt = prompt;
    g.max_tokens = 3;
    g.ignore_eos = true;
    s.conductor->submit(std::move(g), heard[i].sink());
  }
  for (test::Heard& h : heard) {
    REQUIRE(s.a.until([&] { return h.done; }));
    CHECK(!h.failed);
    CHECK(h.tokens == heard[0].tokens);
    CHECK(h.progress.kv_errors == 0);
  }
  const uint64_t computed = s.counted("mc_engine_computed_tokens_total");
  // A slow machine may end a reader's patience: 5 % of what can be found are given up for that.
  const auto given_up = static_cast<uint64_t>(0.05 * 9 * static_cast<double>(reachable));
  CHECK(computed < prompt.size() + 10 * 2 * kBlock + given_up);
  const Json cluster = s.conductor->cluster();
  CHECK(cluster["reachable_hit_tokens"] == 9 * reachable);
  CHECK(cluster["hit_tokens"].get<double>() >= 0.95 * 9 * static_cast<double>(reachable));
  const Json explained = s.conductor->explain("r9")["decisions"][0];
  CHECK(explained["reused_from"].get<std::string>().find("not computed yet") != std::string::npos);
  double waited = 0;
  for (const Json& c : explained["candidates"])
    if (c["name"] == explained["prefill"]) waited = c["wait_ms"].get<double>();
  CHECK(waited > 0);
}

}  // namespace burst_test
}  // namespace mc::serve
