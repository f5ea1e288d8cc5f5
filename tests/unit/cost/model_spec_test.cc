#include "cost/model_spec.h"

#include <doctest/doctest.h>

#include <cstring>

#include "base/json.h"

using namespace mc;

namespace {

Json base() {
  return *parse_json(R"({"name": "m", "layers": 2, "kv-heads": 1, "head-dim": 8, "hidden": 16,
                         "vocab": 100, "element-bytes": 2, "context-max": 4096,
                         "parameters": 1000000})");
}

std::string models() {  // the folder of this file is known to the compiler
  const std::string here = __FILE__;
  return here.substr(0, here.find("tests/unit/")) + "configs/models/";
}

}  // namespace

TEST_CASE("tiny has 4 layers and 1 KiB of KV a token, and its file says the same") {
  const auto s = cost::tiny();
  CHECK(s.layers == 4);
  CHECK(s.kv_bytes_per_token() == 1024);
  CHECK(s.context_max == 262144);
  const auto file = cost::load_spec(models() + "tiny.json");
  REQUIRE_MESSAGE(file, file.error().what);
  CHECK(file->fingerprint(256) == s.fingerprint(256));
  CHECK(std::memcmp(&file->cost, &s.cost, sizeof s.cost) == 0);
  CHECK(file->context_max == s.context_max);
}

TEST_CASE("every committed model loads and has the KV size its paper gives") {
  const std::pair<const char*, uint64_t> models_bytes[] = {{"llama3-70b", 320 * 1024},
                                                           {"llama3-8b", 128 * 1024},
                                                           {"qwen2.5-7b", 56 * 1024},
                                                           {"deepseek-r1", 61 * 576 * 2}};
  for (const auto& [name, bytes] : models_bytes) {
    const auto s = cost::load_spec(models() + name + ".json");
    REQUIRE_MESSAGE(s, s.error().what);
    CHECK(s->name == name);
    CHECK(s->kv_bytes_per_token() == bytes);
    CHECK(cost::prefill_seconds(*s, 8192, 0) > cost::prefill_seconds(*s, 8192, 4096));
    CHECK(cost::step_seconds(*s, 2, 1000) > cost::step_seconds(*s, 1, 1000));
  }
}

TEST_CASE("llama3-70b's prefill follows the calibration at 8k and 128k tokens") {
  const auto s = cost::load_spec(models() + "llama3-70b.json");
  REQUIRE(s);
  CHECK(cost::prefill_seconds(*s, 8192, 0) == doctest::Approx(1.0163).epsilon(0.001));
  CHECK(cost::prefill_seconds(*s, 131072, 0) == doctest::Approx(27.21).epsilon(0.001));
}

TEST_CASE("a 12k-token prefill of tiny is modelled in some tens of milliseconds") {
  const double s = cost::prefill_seconds(cost::tiny(), 12 * 1024, 0);
  CHECK(s > 0.015);
  CHECK(s < 0.060);
  CHECK(cost::prefill_seconds(cost::tiny(), 100, 1000) > 0);  // more reused than there is
  CHECK(cost::step_seconds(cost::tiny(), 0, 0) == 0);
}

TEST_CASE("a wrong spec is refused with the key and what to do") {
  CHECK(cost::parse_spec(base()));
  Json j = base();
  j["layer"] = 3u;
  CHECK(cost::parse_spec(j).error().what.find("did you mean 'layers'") != std::string::npos);
  j = base();
  j["layers"] = 0u;
  CHECK(cost::parse_spec(j).error().what.find("'layers' is 0") != std::string::npos);
  j = base();
  j.erase("hidden");
  CHECK(!cost::parse_spec(j));
  j = base();
  j["cost"] = {{"c0-s", -1}};
  CHECK(!cost::parse_spec(j));
  j["cost"] = {{"load-bytes-per-s", 0}};
  CHECK(!cost::parse_spec(j));
  CHECK(!cost::parse_spec(Json::array()));
  CHECK(!cost::load_spec("/nonexistent.json"));
}
