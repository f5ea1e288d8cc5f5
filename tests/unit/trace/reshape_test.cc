#include "trace/play/reshape.h"

#include <doctest/doctest.h>

#include <cmath>

#include "trace/analyze/stats.h"

namespace mc::trace {
namespace {

TraceRequest record(uint64_t at, uint64_t input, std::vector<uint64_t> ids) {
  return {at, input, 10, std::move(ids)};
}

// Two prompts share two blocks; the second of them came again later, as a whole.
const std::vector<TraceRequest> kThree = {record(0, 1300, {0, 1, 2}), record(1000, 1400, {0, 1, 3}),
                                          record(2000, 1400, {0, 1, 3})};

TEST_CASE("a stretch by ones gives the same trace") {
  const auto made = stretch(kThree, 512, {});
  REQUIRE(made);
  CHECK(*made == kThree);
}

TEST_CASE("twice the rate halves the times and nothing else") {
  const auto made = stretch(kThree, 512, {.rate = 2});
  REQUIRE(made);
  CHECK((*made)[2].timestamp_ms == 1000);
  CHECK((*made)[2].hash_ids == kThree[2].hash_ids);
}

TEST_CASE("a longer prefix is shared by the same requests") {
  const auto made = stretch(kThree, 512, {.prefix = 1.5});
  REQUIRE(made);
  const auto& a = (*made)[0];
  const auto& b = (*made)[1];
  CHECK(a.input_length == 1300 + 512);
  CHECK(std::equal(a.hash_ids.begin(), a.hash_ids.begin() + 3, b.hash_ids.begin()));
  CHECK(a.hash_ids[3] != b.hash_ids[3]);
  CHECK((*made)[2].hash_ids == b.hash_ids);  // still the same prompt
  for (const TraceRequest& r : *made) CHECK(check_record(r));
}

TEST_CASE("a longer prompt grows in its unshared part") {
  const auto made = stretch(kThree, 512, {.prompt = 3});
  REQUIRE(made);
  CHECK((*made)[0].input_length == 1024 + 3 * 276);
  CHECK((*made)[1].input_length == 1400);  // all of it is the third's too
  for (const TraceRequest& r : *made) CHECK(check_record(r));
}

TEST_CASE("a shorter prefix shares less, and a prompt never becomes empty") {
  const auto made = stretch(kThree, 512, {.prefix = .5, .prompt = .001});
  REQUIRE(made);
  CHECK((*made)[0].input_length == 512 + 1);
  for (const TraceRequest& r : *made) CHECK(check_record(r));
}

TEST_CASE("invalid factors are refused") {
  for (const double bad : {0., -1., std::nan(""), HUGE_VAL, 1e9}) {
    CHECK(!stretch(kThree, 512, {.rate = bad}));
    CHECK(!stretch(kThree, 512, {.prefix = bad}));
    CHECK(!stretch(kThree, 512, {.prompt = bad}));
  }
  CHECK(!stretch({record(0, 9'000'000, std::vector<uint64_t>(17579, 0))}, 512, {.prefix = 900}));
}

TEST_CASE("fixed requests are identical, evenly spaced, and share the given prefix") {
  const auto made =
      fixed({.requests = 5, .input = 2000, .output = 100, .shared_tokens = 1100, .qps = 2});
  REQUIRE(made);
  REQUIRE(made->size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    const TraceRequest& r = (*made)[i];
    CHECK(check_record(r));
    CHECK(r.timestamp_ms == 500 * i);
    CHECK(r.input_length == 2000);
    CHECK(r.output_length == 100);
    CHECK(r.hash_ids[0] == 0);
    CHECK(r.hash_ids[1] == 1);
    if (i > 0) CHECK(r.hash_ids[2] != (*made)[i - 1].hash_ids[2]);
  }
  CHECK(!fixed({.requests = 0}));
  CHECK(!fixed({.input = 0}));
  CHECK(!fixed({.qps = 0}));
  CHECK(!fixed({.qps = HUGE_VAL}));
  CHECK(!fixed({.input = 100, .shared_tokens = 100}));
}

}  // namespace
}  // namespace mc::trace
