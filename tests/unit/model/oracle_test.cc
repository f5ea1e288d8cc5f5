// The small real model against what an independent engine said.
#include <cmath>

#include "model/forward/sampler.h"
#include "run.h"
#include "shared.h"

using namespace mc;
using namespace mc::model;

namespace {

Transformer open(const std::string& folder, KvLayout kv, ThreadPool& threads) {
  auto config = parse_config(test::json_at(folder + "/config.json"));
  REQUIRE(config);
  const auto tensors = open_safetensors(folder);
  REQUIRE(tensors);
  auto weights =
      load_weights(*tensors, *config, Naming::kHuggingFace, memory_type(*tensors), threads);
  REQUIRE_MESSAGE(weights.has_value(), weights.error().what);
  return {*config, std::move(*weights), kv, *kernels_named("auto"), threads};
}

std::vector<float> floats_at(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

double worst(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double{a[i]} - b[i]));
  return most;
}

void check_greedy(const Transformer& t, const Json& file) {
  const size_t vocab = t.config().vocab;
  REQUIRE(file["cases"].size() > 10);
  for (const Json& c : file["cases"]) {
    const auto prompt = c["prompt_tokens"].get<std::vector<int32_t>>();
    const auto want = c["generated_tokens"].get<std::vector<int32_t>>();
    test::Sequence s(t, prompt.size() + want.size());
    std::vector<float> logits = s.add(prompt, 100);
    std::vector<int32_t> got;
    while (got.size() < want.size()) {
      got.push_back(sample(std::span(logits).last(vocab), {}));
      if (got.size() < want.size()) logits = s.add({got.back()}, 1);
    }
    CAPTURE(c["name"].get<std::string>());
    CHECK(got == want);
  }
}

}  // namespace

TEST_CASE("oracle: greedy tokens of every prompt are exact, f32 and bf16 weights") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  ThreadPool threads(1);
  const std::string oracle = shared + "/oracle/stories260K";
  check_greedy(open(shared + "/stories260K/hf-f32", {DType::kF32, 16}, threads),
               test::json_at(oracle + "/greedy_f32.json"));
  check_greedy(open(shared + "/stories260K/hf-bf16", {DType::kF32, 16}, threads),
               test::json_at(oracle + "/greedy_bf16w.json"));
}

TEST_CASE("oracle: with f16 KV the greedy tokens are the same") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  ThreadPool threads(1);
  check_greedy(open(shared + "/stories260K/hf-f32-sharded", {DType::kF16, 32}, threads),
               test::json_at(shared + "/oracle/stories260K/greedy_f32.json"));
}

TEST_CASE("oracle: keys, values and logits are within the stated tolerances") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  ThreadPool threads(2);
  const Transformer t = open(shared + "/stories260K/hf-f32", {DType::kF32, 16}, threads);
  for (const std::string name : {"once", "long256"}) {
    const std::string oracle = shared + "/oracle/stories260K/";
    const Json about = test::json_at(oracle + "kv_" + name + ".json");
    const auto prompt = about["prompt_tokens"].get<std::vector<int32_t>>();
    test::Sequence s(t, prompt.size());
    const std::vector<float> logits = s.add(prompt, prompt.size());
    const std::string raw = oracle + "raw/" + name;
    CAPTURE(name);
    CHECK(worst(s.kv(0), floats_at(raw + ".k_half.f32")) < 2e-4);
    CHECK(worst(s.kv(1), floats_at(raw + ".v.f32")) < 1e-4);
    CHECK(worst(logits, floats_at(raw + ".prompt_logits.f32")) < 3e-4);
  }
}
