#include "trace/synth/synth.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "support.h"
#include "trace/analyze/stats.h"

namespace mc::trace {
namespace {

Json profile(const std::string& name) {
  auto json = read_json_file(profile_path(name));
  REQUIRE(json);
  return std::move(*json);
}

Trace made(const std::string& name, const SynthOptions& options) {
  auto records = synthesize(profile(name), name, options);
  REQUIRE(records);
  Trace t;
  t.records = std::move(*records);
  return t;
}

void check_well_formed(const Trace& t) {
  for (const TraceRequest& r : t.records) REQUIRE(check_record(r));
  CHECK(std::is_sorted(t.records.begin(), t.records.end(),
                       [](const TraceRequest& a, const TraceRequest& b) {
                         return a.timestamp_ms < b.timestamp_ms;
                       }));
  const TraceStats s = describe(t);
  CHECK(s.ids_dense);
  CHECK(s.ids_many_parents == 0);
}

TEST_CASE("the seed decides the trace") {
  const Trace a = made("sample", {.seed = 1}), b = made("sample", {.seed = 1}),
              c = made("sample", {.seed = 2});
  CHECK(a.records == b.records);
  CHECK(a.records != c.records);
}

TEST_CASE("the sample trace is small, quick to serve and full of shared prefixes") {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const Trace t = made("sample", {.seed = seed});
    check_well_formed(t);
    const TraceStats s = describe(t);
    CHECK(s.requests == 96);
    CHECK(s.span_s == doctest::Approx(30).epsilon(0.05));
    CHECK(s.input.mean() > 1500);
    CHECK(s.input.mean() < 2600);
    CHECK(s.output.mean() > 13);
    CHECK(s.output.mean() < 19);
    CHECK(s.shared_by_all == 2);
    CHECK(s.roots > 10);
    CHECK(s.roots < 60);
    const auto p = predict_hits(t.records, kBlockTokens, {});
    CHECK(static_cast<double>(p->hit_tokens) > 0.4 * static_cast<double>(p->input_tokens));
  }
}

TEST_CASE("fewer requests keep the rate") {
  const Trace t = made("conversation", {.seed = 3, .requests = 1200});
  check_well_formed(t);
  CHECK(t.records.size() == 1200);
  CHECK(describe(t).span_s == doctest::Approx(353).epsilon(0.02));
}

// Within `part` of `want`, relatively.
bool near(uint64_t got, uint64_t want, double part) {
  const double ratio = static_cast<double>(got) / static_cast<double>(want);
  return std::abs(ratio - 1) < part;
}

TEST_CASE("the conversation profile reproduces the recorded trace within its bounds") {
  const auto path = recorded_conversation();
  if (!path) return;
  const auto real = read_trace(*path);
  REQUIRE(real);
  const std::vector<uint64_t> capacities = {195, 585, 1953, 5859, 19531, 58593, 97656, 195312};
  const HitCurve want = lru_curve(real->records, kBlockTokens, capacities);
  const TraceStats facts = describe(*real);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    CAPTURE(seed);
    const Trace t = made("conversation", {.seed = seed});
    check_well_formed(t);
    const TraceStats s = describe(t);
    CHECK(near(s.requests, facts.requests, 0.03));
    CHECK(near(s.blocks, facts.blocks, 0.03));
    CHECK(near(s.distinct_blocks, facts.distinct_blocks, 0.03));
    CHECK(near(s.roots, facts.roots, 0.08));
    CHECK(near(s.stamps, facts.stamps, 0.01));
    CHECK(s.input.mean() == doctest::Approx(facts.input.mean()).epsilon(0.05));
    CHECK(s.output.mean() == doctest::Approx(facts.output.mean()).epsilon(0.02));
    const HitCurve got = lru_curve(t.records, kBlockTokens, capacities);
    for (size_t i = 0; i < capacities.size(); ++i) {
      CAPTURE(capacities[i]);
      CHECK(std::abs(got.block_rate(got.points[i]) - want.block_rate(want.points[i])) < 0.03);
      CHECK(std::abs(got.full_block_rate(got.points[i]) - want.full_block_rate(want.points[i])) <
            0.03);
    }
    CHECK(std::abs(got.block_rate(got.infinite) - want.block_rate(want.infinite)) < 0.02);
  }
}

// The published figures of these workloads: means of Table 3, hit rates of Figure 16 (which were
// measured on tokens: public blocks of 512 hide part of what the tools' prompts share).
TEST_CASE("documents have the published lengths and hit rates") {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    CAPTURE(seed);
    const Trace t = made("documents", {.seed = seed});
    check_well_formed(t);
    const TraceStats s = describe(t);
    CHECK(s.requests == 3993);
    CHECK(s.input.mean() == doctest::Approx(15325).epsilon(0.05));
    CHECK(s.output.mean() == doctest::Approx(149).epsilon(0.04));
    const HitCurve c = lru_curve(t.records, kBlockTokens, {1953, 3906, 9765, 19531, 97656});
    const double published[] = {0.1461, 0.2345, 0.4352, 0.5886, 0.6582};
    for (size_t i = 0; i < c.points.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(c.full_block_rate(c.points[i]) - published[i]) < 0.04);
    }
    CHECK(c.full_block_rate(c.infinite) == doctest::Approx(0.6582).epsilon(0.03));
  }
}

TEST_CASE("tools and agents have the published lengths, and share their instructions") {
  const Trace t = made("tool-agent", {.seed = 1});
  check_well_formed(t);
  const TraceStats s = describe(t);
  CHECK(s.requests == 23608);
  CHECK(s.input.mean() == doctest::Approx(8596).epsilon(0.05));
  CHECK(s.output.mean() == doctest::Approx(182).epsilon(0.03));
  const HitCurve c = lru_curve(t.records, kBlockTokens, {195, 19531});
  CHECK(c.full_block_rate(c.points[0]) > 0.3);
  CHECK(c.full_block_rate(c.infinite) > 0.54);
  CHECK(c.full_block_rate(c.infinite) < 0.60);
  const Trace tenth = made("tool-agent", {.seed = 1, .requests = 2360});
  check_well_formed(tenth);
  CHECK(tenth.records.size() == 2360);
  CHECK(describe(tenth).span_s == doctest::Approx(353).epsilon(0.05));
}

TEST_CASE("agents have the published turns, lengths and reuse") {
  const auto parsed = parse_conversation(profile("agentic"), "agentic");
  REQUIRE(parsed);
  for (uint64_t seed = 0; seed < 2; ++seed) {
    CAPTURE(seed);
    const Trace t = made("agentic", {.seed = seed, .requests = 3000});
    check_well_formed(t);
    const TraceStats s = describe(t);
    CHECK(s.input.mean() / s.output.mean() == doctest::Approx(131).epsilon(0.1));
    const HitCurve c = lru_curve(t.records, kBlockTokens, {19531});
    CHECK(c.full_block_rate(c.infinite) == doctest::Approx(0.942).epsilon(0.01));
  }
  CHECK(mean_session_requests(*parsed, 1) == doctest::Approx(34).epsilon(0.1));
}

TEST_CASE("errors in a profile name the key and the file") {
  const auto error = [](const char* key, Json value) {
    Json p = profile("sample");
    if (value.is_null())
      p.erase(key);
    else
      p[key] = std::move(value);
    const auto made_anyway = synthesize(p, "p.json", {});
    return made_anyway ? std::string("accepted") : made_anyway.error().what;
  };
  CHECK(error("generator", "chatter") ==
        "p.json: unknown generator 'chatter'; there are: conversation documents tool-agent");
  CHECK(error("span-s", nullptr) == "p.json: no \"span-s\"");
  CHECK(error("spam-s", 3) == "p.json: unknown key 'spam-s': did you mean 'span-s'?");
  CHECK(error("span-s", "30s") == "p.json: \"span-s\": want a number");
  CHECK(error("requests", 1e12).find("is not in [1, ") != std::string::npos);
  CHECK(error("requests", 1.5) == "p.json: \"requests\": want a whole number");
  CHECK(error("continue-beta", Json::array({1})) == "p.json: \"continue-beta\": want [a, b]");
  CHECK(error("output-tokens", Json::array({1, 2})).find("2 values for 5 quantile levels") !=
        std::string::npos);
  CHECK(error("output-tokens", Json::array({5, 4, 3, 2, 1})).find("must not fall") !=
        std::string::npos);
  CHECK(error("branch-share", 0.99).find("more than 1") != std::string::npos);
  CHECK(error("system-prompt-tokens", 4000).find("not longer than") != std::string::npos);
  CHECK(!synthesize(Json::array(), "p.json", {}));
}

TEST_CASE("knots interpolate between their levels, also through zero") {
  const auto k = Knots::make({0, 50, 100}, {-9, 0, 99});
  REQUIRE(k);
  CHECK(k->at(0) == doctest::Approx(-9));
  CHECK(k->at(0.5) == doctest::Approx(0));
  CHECK(k->at(0.75) == doctest::Approx(9));  // half way to 99 in log(1 + x)
  CHECK(k->at(1) == doctest::Approx(99));
  CHECK(!Knots::make({0, 50}, {1, 2}));
  CHECK(!Knots::make({0, 50, 50, 100}, {1, 2, 3, 4}));
}

}  // namespace
}  // namespace mc::trace
