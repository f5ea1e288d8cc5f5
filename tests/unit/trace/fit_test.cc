#include "trace/fit/fit.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/json.h"
#include "support.h"
#include "tests/slow.h"
#include "trace/analyze/stats.h"
#include "trace/synth/synth.h"

namespace mc::trace {
namespace {

Trace of(const Json& profile, const SynthOptions& options) {
  auto records = synthesize(profile, "profile", options);
  REQUIRE(records);
  Trace t;
  t.name = "made";
  t.records = std::move(*records);
  return t;
}

Json fitted(const Trace& t) {
  const auto f = fit_profile(t);
  REQUIRE(f);
  auto json = parse_json(f->profile);
  REQUIRE(json);
  return *json;
}

void check_alike(const Trace& got, const Trace& want, double input, double hit,
                 double span = 0.02) {
  const TraceStats g = describe(got), w = describe(want);
  CHECK(g.requests == w.requests);
  CHECK(g.span_s == doctest::Approx(w.span_s).epsilon(span));
  CHECK(g.stamps == doctest::Approx(static_cast<double>(w.stamps)).epsilon(0.02));
  CHECK(g.input.mean() == doctest::Approx(w.input.mean()).epsilon(input));
  CHECK(g.output.mean() == doctest::Approx(w.output.mean()).epsilon(0.03));
  CHECK(std::abs(fit_shape(got).hit_rate - fit_shape(want).hit_rate) < hit);
}

TEST_CASE("a fitted profile makes traces with the rate, lengths and hit rate of the original") {
  auto sample = read_json_file(profile_path("sample"));
  REQUIRE(sample);
  const Trace original = of(*sample, {.seed = 7, .requests = 1500});
  const Json profile = fitted(original);
  for (uint64_t seed = 10; seed < 10 + fewer(3); ++seed) {
    CAPTURE(seed);
    check_alike(of(profile, {.seed = seed}), original, 0.08, 0.03);
  }
  const TraceStats half = describe(of(profile, {.seed = 1, .requests = 750}));
  CHECK(half.span_s == doctest::Approx(describe(original).span_s / 2).epsilon(0.05));
}

TEST_CASE("the profile fitted to the recorded conversations reproduces them") {
  const auto path = recorded_conversation();
  if (!path) return;
  auto real = read_trace(*path);
  REQUIRE(real);
  real->records.resize(1500);  // an eighth: enough to be fitted, little enough for sanitizers
  const Json profile = fitted(*real);
  CHECK(profile["slot-ms"] == 3000);
  for (uint64_t seed = 10; seed < 10 + fewer(3); ++seed) {
    CAPTURE(seed);
    check_alike(of(profile, {.seed = seed}), *real, 0.06, 0.03);
  }
}

TEST_CASE("a fitted profile keeps chats and tool calls apart") {
  auto mixed = read_json_file(profile_path("tool-agent"));
  REQUIRE(mixed);
  const Trace original = of(*mixed, {.seed = 5, .requests = 3000});
  const Json profile = fitted(original);
  CHECK(profile.at("generator") == "tool-agent");
  REQUIRE(profile.at("tools").size() == 2);
  const Json& tools = mixed->at("tools");
  for (size_t i = 0; i < 2; ++i) {
    const Json &got = profile.at("tools")[i], &want = tools[i];
    CHECK(std::abs(got.at("share").get<double>() - want.at("share").get<double>()) < 0.03);
    CHECK(got.at("shared-tokens").get<uint64_t>() / 512 ==
          want.at("shared-tokens").get<uint64_t>() / 512);
  }
  const Trace again = of(profile, {.seed = 6});
  CHECK(again.records.size() == original.records.size());
  CHECK(fit_shape(again).mean_input ==
        doctest::Approx(fit_shape(original).mean_input).epsilon(0.1));
  CHECK(std::abs(fit_shape(again).hit_rate - fit_shape(original).hit_rate) < 0.04);
}

// The recorded order, lengths and hits of caches of every size.
TEST_CASE("a trace of questions about documents gives a documents profile") {
  auto documents = read_json_file(profile_path("documents"));
  REQUIRE(documents);
  (*documents)["questions-together-max"] = 2;
  const Trace original = of(*documents, {.seed = 5, .requests = 1500});
  const Json profile = fitted(original);
  CHECK(profile.at("generator") == "documents");
  const auto near = [&](const char* key, double within) {
    CAPTURE(key);
    CHECK(std::abs(profile.at(key).get<double>() - documents->at(key).get<double>()) < within);
  };
  near("short-share", 0.02);
  near("single-share", 0.02);
  near("repeat-share", 0.03);
  near("rate-per-s", 0.3);
  const Trace again = of(profile, {.seed = 6});
  check_alike(again, original, 0.06, 0.02, 0.1);  // arrivals are Poisson
  const std::vector<uint64_t> capacities = {500, 1000, 2000, 5000, 10'000};
  const HitCurve got = lru_curve(again.records, kBlockTokens, capacities),
                 want = lru_curve(original.records, kBlockTokens, capacities);
  for (size_t i = 0; i < capacities.size(); ++i) {
    CAPTURE(capacities[i]);
    CHECK(std::abs(got.token_rate(got.points[i]) - want.token_rate(want.points[i])) < 0.04);
  }
}

TEST_CASE("sessions that grow are no documents, with a system prompt or without") {
  auto chat = read_json_file(profile_path("conversation"));
  REQUIRE(chat);
  (*chat)["system-prompt-tokens"] = 0;
  CHECK(fitted(of(*chat, {.seed = 5, .requests = 1500})).at("generator") == "conversation");
}

TEST_CASE("requests that share nothing are fitted as sessions of one request") {
  Trace t;
  uint64_t next = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    TraceRequest r{i * 250, 700 + i, 10 + i % 7, {}};
    for (uint64_t k = 0; k < 2; ++k) r.hash_ids.push_back(next++);
    t.records.push_back(r);
  }
  const Json profile = fitted(t);
  CHECK(profile["slot-ms"] == 250);
  CHECK(profile["system-prompt-tokens"] == 0);
  const Trace made = of(profile, {.seed = 3});
  CHECK(made.records.size() == 200);
  CHECK(fit_shape(made).hit_rate < 0.03);
  CHECK(describe(made).input.mean() == doctest::Approx(799.5).epsilon(0.03));
}

TEST_CASE("a trace that cannot be fitted is refused with the reason") {
  const auto reason = [](const Trace& t) {
    const auto f = fit_profile(t);
    return f ? std::string() : f.error().what;
  };
  Trace t;
  t.name = "few";
  t.records.assign(10, {0, 100, 1, {0}});
  CHECK(reason(t) == "few: 10 requests: a profile needs 50 at least");
  t.records.assign(60, {5, 100, 1, {0}});
  CHECK(reason(t).find("no rate to fit") != std::string::npos);
  t.block_tokens = 16;
  CHECK(reason(t).find("profiles are of 512") != std::string::npos);
}

}  // namespace
}  // namespace mc::trace
