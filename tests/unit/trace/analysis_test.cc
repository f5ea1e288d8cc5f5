#include "trace/analyze/analysis.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "support.h"

namespace mc::trace {
namespace {

TEST_CASE("numbers of tokens are read as people write them") {
  CHECK(*parse_tokens("300000") == 300000);
  CHECK(*parse_tokens("0.3M") == 300000);
  CHECK(*parse_tokens("8k") == 8000);
  CHECK(*parse_tokens("1G") == 1000000000);
  CHECK(*parse_tokens("0") == 0);
  for (const char* bad : {"", "M", "-1", "1T", "1e30", "ten", "nan", "inf"})
    CHECK_MESSAGE(!parse_tokens(bad), bad);
  CHECK(tokens_text(300000) == "0.3M");
  CHECK(tokens_text(4096) == "4096");
}

TEST_CASE("the published capacities are whole blocks, rounded down") {
  Trace t;
  t.records = {prompt({0})};
  AnalysisOptions o;
  for (const std::string& c : kCapacities) o.capacities_tokens.push_back(*parse_tokens(c));
  const auto a = analyze(t, o);
  REQUIRE(a);
  std::vector<uint64_t> blocks_held;
  for (const CacheHits& h : a->curve.points) blocks_held.push_back(h.capacity_blocks);
  CHECK(blocks_held == std::vector<uint64_t>{195, 585, 1953, 5859, 19531, 58593, 97656, 195312});
}

TEST_CASE("text and JSON say the same, and why lines were skipped") {
  auto t = parse_trace("{}\n" + record_line(prompt({0, 1})) + record_line(prompt({0, 1, 2})), "t");
  REQUIRE(t);
  AnalysisOptions o;
  o.capacities_tokens = {512};
  o.predict = PredictOptions{.node_blocks = 1, .nodes = 2};
  const auto a = analyze(*t, o);
  REQUIRE(a);
  const std::string text = analysis_text(*t, *a);
  CHECK(text.find("3 lines, 1 malformed") != std::string::npos);
  CHECK(text.find("line 1: no \"timestamp\"") != std::string::npos);
  CHECK(text.find("1024 hit tokens of 2560") != std::string::npos);
  const Json json = analysis_json(*t, *a);
  CHECK(json["malformed"] == 1);
  CHECK(json["bad_lines"][0]["line"] == 1);
  CHECK(json["requests"] == 2);
  CHECK(json["lru"][0]["hit_blocks"] == 1);
  CHECK(json["infinite"]["hit_blocks"] == 2);
  CHECK(json["infinite"]["capacity_blocks"].is_null());
  CHECK(json["prediction"]["hit_tokens"] == 1024);
  CHECK(json["prediction"]["capacity_blocks"] == 2);
  o.predict.reset();
  CHECK(analysis_json(*t, *analyze(*t, o))["prediction"].is_null());
}

}  // namespace
}  // namespace mc::trace
