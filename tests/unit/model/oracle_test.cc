// The small real model against what an independent engine said.
#include <algorithm>
#include <cmath>
#include <cstdio>

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

// How far answers with this KV are from the oracle's, which are those with KV of f32.
struct Nearness {
  size_t texts = 0, same = 0;        // greedy texts
  size_t tokens = 0, likeliest = 0;  // of them; those that are the likeliest after the ones before
  double worst = 0, squares = 0, logits = 0;
};
Nearness nearness(const std::string& shared, KvFormat kv, ThreadPool& threads) {
  const Transformer exact = open(shared + "/stories260K/hf-f32", {DType::kF32, 16}, threads);
  const Transformer other = open(shared + "/stories260K/hf-f32", {kv, 16}, threads);
  const size_t vocab = exact.config().vocab;
  Nearness n;
  const Json file = test::json_at(shared + "/oracle/stories260K/greedy_f32.json");
  for (const Json& c : file["cases"]) {
    auto all = c["prompt_tokens"].get<std::vector<int32_t>>();
    const size_t prompt = all.size();
    const auto want = c["generated_tokens"].get<std::vector<int32_t>>();
    if (!want.empty()) all.insert(all.end(), want.begin(), want.end() - 1);
    test::Sequence a(exact, all.size()), b(other, all.size());
    const auto logits = a.add(all, 100), near = b.add(all, 100);
    n.worst = std::max(n.worst, worst(logits, near));
    for (size_t i = 0; i < logits.size(); ++i)
      n.squares += (double{logits[i]} - near[i]) * (double{logits[i]} - near[i]);
    n.logits += static_cast<double>(logits.size());
    size_t likeliest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const auto row = std::span(near).subspan((prompt - 1 + i) * vocab, vocab);
      likeliest += std::max_element(row.begin(), row.end()) - row.begin() == want[i];
    }
    ++n.texts;
    n.same += likeliest == want.size();
    n.tokens += want.size();
    n.likeliest += likeliest;
  }
  std::printf(
      "KV of %s: %zu of %zu texts are the same, %zu of %zu tokens the likeliest; logits are "
      "off by %.3g at most, %.3g in the root of the mean square\n",
      name(kv), n.same, n.texts, n.likeliest, n.tokens, n.worst, std::sqrt(n.squares / n.logits));
  return n;
}

TEST_CASE("oracle: with q8 KV logits stay near, and most tokens are the same") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  ThreadPool threads(1);
  nearness(shared, DType::kBf16, threads);
  const Nearness q8 = nearness(shared, KvFormat::q8(), threads);
  CHECK(q8.worst < 2);
  CHECK(q8.likeliest * 100 > q8.tokens * 97);
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
