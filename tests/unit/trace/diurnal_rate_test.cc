#include "trace/synth/diurnal_rate.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::trace;

TEST_CASE("a day has as many requests an hour as its rate says, in the order they had") {
  std::vector<TraceRequest> flat;
  for (uint64_t i = 0; i < 24'000; ++i) flat.push_back({i * 10, 1 + i % 7, 1, {i}});
  DiurnalRate rates{};
  rates.fill(1);
  for (size_t h = 12; h < 24; ++h) rates[h] = 3;
  const auto day = over_a_day(flat, rates);
  REQUIRE(day);
  REQUIRE(day->size() == flat.size());
  std::array<int, 24> hours{};
  for (size_t i = 0; i < day->size(); ++i) {
    CHECK((*day)[i].hash_ids == flat[i].hash_ids);
    REQUIRE((*day)[i].timestamp_ms < kDayMs);
    if (i > 0) REQUIRE((*day)[i].timestamp_ms >= (*day)[i - 1].timestamp_ms);
    ++hours[(*day)[i].timestamp_ms / 3'600'000];
  }
  CHECK(hours[5] == doctest::Approx(500).epsilon(0.01));
  CHECK(hours[18] == doctest::Approx(1500).epsilon(0.01));
  CHECK(hours[11] == doctest::Approx(625).epsilon(0.01));  // it rises from the middle of the hour
}

TEST_CASE("a bad diurnal rate is refused with what is wrong") {
  CHECK(parse_diurnal_rate("day"));
  CHECK((*parse_diurnal_rate("1,2,3,4,5,6,7,8,9,10,11,12,1,2,3,4,5,6,7,8,9,10,11,12"))[11] == 12);
  CHECK(parse_diurnal_rate("1,2").error().what.find("--tide has 2 numbers: want 24") == 0);
  CHECK(parse_diurnal_rate("night").error().what.find("--tide 'night': want day") == 0);
  CHECK(parse_diurnal_rate("-1").error().what.find("numbers from 0") != std::string::npos);
  CHECK(!over_a_day({{0, 1, 1, {0}}}, DiurnalRate{}));
  CHECK(over_a_day({}, DiurnalRate{})->empty());
}

TEST_CASE("two traces merge by time and share no blocks") {
  const auto both = together({{0, 600, 1, {0, 1}}, {20, 512, 1, {0}}}, {{10, 512, 2, {0}}});
  REQUIRE(both.size() == 3);
  CHECK(both[1].output_length == 2);
  CHECK(both[1].hash_ids == std::vector<uint64_t>{2});
  CHECK(both[2].hash_ids == std::vector<uint64_t>{0});
}
