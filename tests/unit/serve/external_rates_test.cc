// What is learned of engines' speed and queues, and what own workers answer for themselves.
#include <doctest/doctest.h>

#include "base/json.h"
#include "mixed_site.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace external_rates_test {
namespace {

constexpr const char* kVllmMetrics = R"(# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="org/tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="org/tiny"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 5.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="1213"} 1.0
vllm:broken{
vllm:num_requests_waiting nonsense
)";

}  // namespace

TEST_CASE("F176: an engine twice as slow as the spec is predicted within a quarter after ten") {
  const sched::Cost cost(cost::tiny());
  ExternalEngine e;
  Time now{1h};
  for (int i = 0; i < 10; ++i) {
    const uint64_t n = 20'000 + 7000 * static_cast<uint64_t>(i % 4);
    const uint64_t cached = i % 3 == 2 ? 10'240 : 0;
    AnswerTimes times{.sent = now, .alone = true};
    now += from_seconds(2 * cost.spec_prefill_ms(n, cached) / 1e3);
    e.begins(times, true, now);
    now += 40ms;  // four more tokens
    e.learn(times, cost, n, cached, 4, now);
    now += 1s;
  }
  CHECK(e.rate.seen() == 10);
  CHECK(e.step_ms == doctest::Approx(10));
  for (const uint64_t n : {uint64_t{10'000}, uint64_t{30'000}, uint64_t{80'000}})
    CHECK(e.rate.predict_ms(cost.spec_prefill_ms(n, 0)) ==
          doctest::Approx(2 * cost.spec_prefill_ms(n, 0)).epsilon(0.25));
}

TEST_CASE("what waits behind others, and what mostly decodes, is not taken for slowness") {
  const sched::Cost cost(cost::tiny());
  ExternalEngine e;
  const Time start{1h};
  const double spec = cost.spec_prefill_ms(40'000, 0);
  const Duration takes = from_seconds(spec / 1e3);
  AnswerTimes first{.sent = start, .alone = true}, second{.sent = start};
  e.begins(first, true, start + takes);
  e.begins(second, true, start + 2 * takes);  // the other one was before it
  e.learn(first, cost, 40'000, 0, 0, start + takes);
  e.learn(second, cost, 40'000, 0, 0, start + 2 * takes);
  CHECK(e.rate.predict_ms(spec) == doctest::Approx(spec).epsilon(0.01));
  AnswerTimes whole{.sent = start + 1min, .alone = true};
  e.begins(whole, false, start + 2min);
  e.learn(whole, cost, 4000, 0, 1'000'000, start + 2min);
  CHECK(e.rate.seen() == 2);
}

TEST_CASE("F176: a slow engine's own times are what requests are predicted to take") {
  Mixed m(false);
  MockEngine& e = m.engine("e0", 4096);
  e.delay = 200ms;
  Json tokens = Json::array();
  for (int i = 0; i < 20'000; ++i) tokens.push_back(i % 1000);
  const auto predicted = [&](int i) {
    tokens[0] = i;
    const auto r = m.ask("/v1/completions",
                         R"({"model":"tiny","stream":true,"prompt":)" + dump_json(tokens) + "}");
    return std::stod(r.headers.at("x-mc-predicted-ttft-ms"));
  };
  const double spec = predicted(0);
  CHECK(spec < 60);
  for (int i = 1; i < 4; ++i) predicted(i);
  CHECK(predicted(4) > 2 * spec);
  CHECK(m.conductor->external().find("e0")->rate.seen() == 5);
}

TEST_CASE("what is no stream waits at an engine as long as its prompt does, not as its answer") {
  Mixed m(false);
  m.engine("e0").delay = 10min;  // of their answers; a prompt takes less than a millisecond
  std::vector<Mixed::Answer> answers(8);
  std::vector<http::Client::Id> sent;
  for (Mixed::Answer& a : answers)
    sent.push_back(m.send("/v1/completions", R"({"model":"tiny","prompt":[1,2,3]})", a));
  auto& e = *m.conductor->external().find("e0");
  REQUIRE(until(m.loop, [&] { return e.assigned == answers.size(); }));
  CHECK(until(m.loop, [&] { return e.wait_ms(m.loop.now()) == 0; }));
  CHECK(e.requests == answers.size());
  for (const http::Client::Id id : sent) m.client.cancel(id);
}

TEST_CASE("an engine's own queue and the use of its cache are read from its metrics") {
  const EngineMetrics all = parse_engine_metrics(kVllmMetrics);
  CHECK(all.running == 3);
  CHECK(all.waiting == 7);
  CHECK(all.kv_usage == 0.5);
  CHECK(all.block_tokens == 32u);
  CHECK(all.blocks == 1213u);
  const EngineMetrics other = parse_engine_metrics(
      "sglang:num_running_reqs{a=\"}\"} 4\nsglang:num_queue_reqs 5 1700000000\n"
      "sglang:token_usage 0.1");
  CHECK(other.running == 4);
  CHECK(other.waiting == 5);
  CHECK(other.kv_usage == 0.1);
  for (const char* odd : {"", "\n", "vllm:", "vllm:cache_config_info{block_size", "vllm:x{}"})
    CHECK_FALSE(parse_engine_metrics(odd).waiting);
  for (const char* lie : {"1e300", "1e999", "-1", "nan", "inf", "1000000001"})
    CHECK_FALSE(
        parse_engine_metrics(std::string("vllm:num_requests_waiting ") + lie + "\n").waiting);

  Mixed m(false);
  m.engine("e0").metrics = kVllmMetrics;
  MockEngine& idle = m.engine("e1");
  idle.metrics = "vllm:num_requests_waiting{engine=\"0\"} 0.0\n";
  const auto told = [&](const char* name) {
    return m.conductor->external().find(name)->metrics.waiting.has_value();
  };
  REQUIRE(until(m.loop, [&] { return told("e0") && told("e1"); }));
  // Others' requests wait at e0, each as long as one of ours took there.
  auto& busy = *m.conductor->external().find("e0");
  busy.rate.learn(1, 50);
  m.conductor->external().find("e1")->rate.learn(1, 50);
  CHECK(busy.wait_ms(m.loop.now()) == doctest::Approx(350));
  busy.metrics.waiting = 1e9;
  CHECK(busy.wait_ms(m.loop.now()) == doctest::Approx(24 * 3600e3));  // no time that no clock holds
  busy.metrics.waiting = 7;
  for (int i = 0; i < 3; ++i)
    CHECK(m.ask("/v1/completions", R"({"model":"tiny","prompt":[)" + std::to_string(i) + "]}")
              .headers.at("x-mc-prefill") == "e1");
  const auto nodes = (*parse_json(m.ask("/cluster").body))["nodes"];
  CHECK(nodes[0]["waiting"] == 7);
  CHECK(nodes[0]["kv_usage"] == 0.5);
}

TEST_CASE("F82: a request without a seed has one of its own, also when it is tried again") {
  Mixed m(true);
  const auto seeds = [&](const std::string& body, int times) {
    m.decode->reserved.clear();
    for (int i = 0; i < times; ++i) m.ask("/v1/completions", body);
    std::set<uint64_t> all;
    for (const Reserve& r : m.decode->reserved) all.insert(r.seed);
    return all;
  };
  CHECK(seeds(R"({"model":"tiny","prompt":"x"})", 4).size() == 4);
  CHECK(seeds(R"({"model":"tiny","prompt":"x","seed":7})", 2) == std::set<uint64_t>{7});
  CHECK(seeds(R"({"model":"tiny","prompt":"x","seed":0})", 1) == std::set<uint64_t>{0});
  m.prefill->broken = true;
  CHECK(seeds(R"({"model":"tiny","prompt":"x"})", 1).size() == 1);
  CHECK(m.decode->reserved.size() == 2);
}

}  // namespace external_rates_test
