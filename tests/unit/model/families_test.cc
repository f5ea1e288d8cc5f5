// Every family of the table: equal to its formulas, whichever kind of file it came from, and equal
// to itself however it is computed.
#include "model/files/families.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/random.h"
#include "family_formulas.h"
#include "model/forward/model.h"
#include "run.h"

using namespace mc;
using namespace mc::model;

namespace mc::families_test {
namespace {

constexpr size_t kTokens = 110;

std::vector<int32_t> some_tokens(uint64_t seed, size_t n, size_t vocab) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(vocab));
  return tokens;
}

// A model of a case, with what it reads from.
struct Opened {
  explicit Opened(const test::FamilyCase& c, uint64_t seed = 5)
      : tensors(test::hf_tensors(c, seed)) {
    set.tensors = test::views(tensors);
    auto parsed = parse_config(c.json);
    REQUIRE_MESSAGE(parsed.has_value(), parsed.error().what);
    config = *parsed;
  }
  Weights weights(ThreadPool& threads, LayerRange wanted = {}) const {
    auto w = load_weights(set, config, Naming::kHuggingFace, DType::kF32, threads, wanted);
    REQUIRE_MESSAGE(w.has_value(), w.error().what);
    return std::move(*w);
  }
  Transformer transformer(ThreadPool& threads, KvLayout kv = {DType::kF32, 16},
                          const char* kernels = "auto", DType factors = DType::kF32) const {
    return {config, weights(threads), kv, *kernels_named(kernels), threads, factors};
  }
  test::NamedTensors tensors;
  TensorSet set;
  ModelConfig config;
};

std::vector<float> logits(const Transformer& t, size_t chunk, size_t n = kTokens) {
  test::Sequence s(t, n);
  return s.add(some_tokens(3, n, t.config().vocab), chunk);
}

TEST_CASE("each family's logits are those of its formulas in double precision") {
  ThreadPool threads(2);
  for (const test::FamilyCase& c : test::family_cases()) {
    CAPTURE(c.name);
    const Opened m(c);
    const auto tokens = some_tokens(3, kTokens, c.vocab);
    const auto got = logits(m.transformer(threads), kTokens);
    const auto want = test::family_logits(c, m.tensors, tokens);
    double most = 0, size = 0;
    for (size_t p = 0; p < kTokens; ++p)
      for (size_t i = 0; i < c.vocab; ++i) {
        most = std::max(most, std::fabs(got[p * c.vocab + i] - want[p][i]));
        size = std::max(size, std::fabs(want[p][i]));
      }
    CHECK(most < 2e-4);
    CHECK(size > 1);
  }
}

TEST_CASE("a family's GGUF file gives the bits of its HF folder") {
  ThreadPool threads(2);
  size_t made = 0;
  for (const test::FamilyCase& c : test::family_cases()) {
    if (c.gguf.empty()) continue;
    CAPTURE(c.name);
    ++made;
    const Opened m(c);
    const test::GgufFile file = test::gguf_of(c, m.tensors);
    const Gguf g{file.metadata, test::views(file.tensors)};
    const auto config = gguf_config(g);
    REQUIRE_MESSAGE(config.has_value(), config.error().what);
    CHECK(describe_parts(*config) == describe_parts(m.config));
    CHECK(config->parameters() == m.config.parameters());
    const TensorSet set{g.tensors, {}};
    auto w = load_weights(set, *config, Naming::kGguf, DType::kF32, threads);
    REQUIRE_MESSAGE(w.has_value(), w.error().what);
    const Transformer t(*config, std::move(*w), {DType::kF32, 16}, *kernels_named("auto"), threads);
    CHECK(logits(t, kTokens) == logits(m.transformer(threads), kTokens));
  }
  CHECK(made == 14);
}

TEST_CASE("a GGUF file that leaves out DeepSeek's groups of experts is doubted by name") {
  test::FamilyCase c = test::families::deepseek2();
  c.experts = 160, c.groups = 8, c.groups_used = 3, c.used = 6;
  c.json["n_routed_experts"] = 160;
  test::GgufFile file = test::gguf_of(c, test::hf_tensors(c, 5));
  const auto doubt = [&file] {
    const Gguf g{file.metadata, test::views(file.tensors)};
    const auto config = gguf_config(g);
    REQUIRE_MESSAGE(config.has_value(), config.error().what);
    return gguf_doubt(g, *config);
  };
  CHECK(doubt().empty());
  file.metadata.erase("deepseek2.expert_group_count");
  CHECK(doubt().find("'deepseek2.expert_group_count'") != std::string::npos);
  CHECK(doubt().find("all 160") != std::string::npos);
  file.metadata["deepseek2.expert_count"] = int64_t{64};  // as V2-Lite, which has none
  CHECK(doubt().empty());
}

TEST_CASE("the parameters of a family are those of its tensors") {
  for (const test::FamilyCase& c : test::family_cases()) {
    CAPTURE(c.name);
    const Opened m(c);
    uint64_t n = 0;
    for (const auto& [name, t] : m.tensors) n += t.values.size();
    CHECK(m.config.parameters() == n);
  }
}

TEST_CASE("each family's bits do not depend on chunks, blocks, threads or the kind of KV") {
  ThreadPool one(1), three(3);
  for (const test::FamilyCase& c : test::family_cases()) {
    CAPTURE(c.name);
    const Opened m(c);
    const Transformer t = m.transformer(one, {DType::kBf16, 16});
    const auto want = logits(t, kTokens);
    for (const size_t chunk : {1u, 7u, 64u}) CHECK(logits(t, chunk) == want);
    CHECK(logits(m.transformer(three, {DType::kBf16, 7}), 50) == want);
    // Weights of f32 are multiplied exactly all the same: only attention is rounded.
    for (const auto& [kv, factors] : {std::pair{KvFormat(DType::kBf16), DType::kBf16},
                                      std::pair{KvFormat::q8(), DType::kF32}}) {
      const Transformer way = m.transformer(one, {kv, 16}, "auto", factors);
      const auto rounded = logits(way, kTokens);
      CHECK(rounded != want);
      CHECK(logits(way, 7) == rounded);
      CHECK(logits(m.transformer(three, {kv, 7}, "auto", factors), 50) == rounded);
      double most = 0;
      for (size_t i = 0; i < want.size(); ++i)
        most = std::max(most, std::fabs(double{rounded[i]} - want[i]));
      if (m.config.experts.count == 0) CHECK(most < 0.2);  // rounding may choose other experts
    }
  }
}

TEST_CASE("each family's bits are those of every instruction set") {
  ThreadPool threads(1);
  constexpr size_t kFew = 60;
  for (const test::FamilyCase& c : test::family_cases()) {
    CAPTURE(c.name);
    const Opened m(c);
    const auto want = logits(m.transformer(threads, {DType::kF32, 16}, "plain"), kFew, kFew);
    for (const Kernels* set : kernels_here()) {
      CAPTURE(set->name);
      CHECK(logits(m.transformer(threads, {DType::kF32, 16}, set->name), kFew, kFew) == want);
    }
    for (const KvFormat kv : {KvFormat(DType::kBf16), KvFormat::q8()}) {
      const auto bits = [&](const char* set) {
        return logits(m.transformer(threads, {kv, 16}, set, DType::kBf16), kFew, kFew);
      };
      const auto plain = bits("plain");
      for (const Kernels* set : kernels_here()) {
        CAPTURE(set->name);
        CHECK(bits(set->name) == plain);
      }
    }
  }
}

TEST_CASE("sequences of a family decoded together are as each of them alone") {
  ThreadPool threads(2);
  for (const test::FamilyCase& c : test::family_cases()) {
    CAPTURE(c.name);
    const Transformer t = Opened(c).transformer(threads);
    std::vector<test::Sequence> batch;
    std::vector<std::vector<float>> want;
    std::vector<int32_t> last;
    for (uint64_t i = 0; i < 4; ++i) {
      const auto prompt = some_tokens(20 + i, 3 + 30 * i, c.vocab);
      last.push_back(prompt.back());
      test::Sequence alone(t, prompt.size());
      const auto all = alone.add(prompt, 64);
      want.emplace_back(all.end() - static_cast<std::ptrdiff_t>(c.vocab), all.end());
      batch.emplace_back(t, prompt.size());
      (void)batch.back().add({prompt.begin(), prompt.end() - 1}, 64);
    }
    std::vector<float> x(batch.size() * c.hidden), got(batch.size() * c.vocab);
    std::vector<Slice> slices;
    for (test::Sequence& s : batch) slices.push_back(s.next());
    t.embed(last, x.data());
    for (uint32_t l = 0; l < c.layers; ++l) t.layer(l, slices, x.data());
    t.logits(x.data(), batch.size(), got.data());
    for (size_t i = 0; i < batch.size(); ++i)
      CHECK(std::equal(want[i].begin(), want[i].end(),
                       got.begin() + static_cast<std::ptrdiff_t>(i * c.vocab)));
  }
}

// As a pipeline has it: each stage has the weights and the KV of its layers alone.
TEST_CASE("stages of a family's layers, one after the other, give the bits of all of them") {
  ThreadPool threads(2);
  for (const test::FamilyCase& c : test::family_cases()) {
    CAPTURE(c.name);
    const Opened m(c);
    const auto tokens = some_tokens(3, kTokens, c.vocab);
    const auto run = [&](const std::vector<uint32_t>& ends) {
      std::vector<float> x(kTokens * c.hidden);
      uint32_t first = 0;
      for (const uint32_t end : ends) {
        const Transformer t(m.config, m.weights(threads, {first, end}), {DType::kF32, 256, first},
                            *kernels_named("auto"), threads);
        std::vector<std::byte> memory(c.layers * 2 * m.config.kv_rows() * 256 * 4);
        std::byte* const block = memory.data();
        const Slice slice{{&block, 1}, 0, kTokens};
        if (first == 0) t.embed(tokens, x.data());
        for (uint32_t l = first; l < end; ++l) t.layer(l, {&slice, 1}, x.data());
        first = end;
      }
      return x;
    };
    const auto last = static_cast<uint32_t>(c.layers);
    CHECK(run({1, last}) == run({last}));
  }
}

TEST_CASE("what changes a family's answers changes the digest that KV is known by") {
  const test::FamilyCase c = [] {
    for (const test::FamilyCase& one : test::family_cases())
      if (one.name == "gemma3") return one;
    return test::FamilyCase{};
  }();
  const Opened m(c);
  const auto digest = [&](auto change) {
    ModelFiles files{m.config, Tokenizer::bytes_only(m.config.vocab), {m.set.tensors, {}}, {}, {}};
    change(files.config);
    return files.digest();
  };
  const uint64_t same = digest([](ModelConfig&) {});
  CHECK(digest([](ModelConfig&) {}) == same);
  CHECK(digest([](ModelConfig& x) { x.layer_kinds[2].window = 41; }) != same);
  CHECK(digest([](ModelConfig& x) { x.layer_kinds[2].turn = Turn::kNone; }) != same);
  CHECK(digest([](ModelConfig& x) { x.local_rope.theta = 20000; }) != same);
  CHECK(digest([](ModelConfig& x) { x.embedding_scale = 7; }) != same);
  CHECK(digest([](ModelConfig& x) { x.query_scalar = 17; }) != same);
  CHECK(digest([](ModelConfig& x) { x.attention_cap = 50; }) != same);
  CHECK(digest([](ModelConfig& x) { x.logit_cap = 30; }) != same);
  CHECK(digest([](ModelConfig& x) { x.experts.normalized = true; }) != same);
}

TEST_CASE("an engine of LLaMA's parts alone hears what a model has beyond them") {
  std::map<std::string, std::string> beyond;
  for (const test::FamilyCase& c : test::family_cases())
    beyond[c.name] = parts_beyond_llama(Opened(c).config);
  CHECK(beyond["llama"].empty());
  CHECK(beyond["llama3"].empty());
  CHECK(beyond["mistral"] == "sliding windows");
  CHECK(beyond["qwen3"] == "QK norm");
  CHECK(beyond["mixtral"] == "experts");
  CHECK(beyond["deepseek2, lite"].find("latent attention") == 0);
  CHECK(beyond["smollm3"] == "layers without rotation");
  CHECK(beyond["gemma2"].find("soft caps") != std::string::npos);
  CHECK(beyond["phi3"].find("a part of each head") != std::string::npos);
}

TEST_CASE("names that are not in the table are refused with those that are") {
  const auto refusal = [](const char* architecture) {
    Json json = test::family_cases()[0].json;
    json["architectures"] = {architecture};
    return parse_config(json).error();
  };
  CHECK(refusal("MambaForCausalLM").code == Code::kUnsupported);
  CHECK(refusal("MambaForCausalLM").what.find("Qwen3ForCausalLM") != std::string::npos);
  CHECK(refusal("MambaForCausalLM").what.find("external engine") != std::string::npos);
  for (const char* other : {"Llama4ForConditionalGeneration", "Qwen3NextForCausalLM",
                            "GptOssForCausalLM", "Glm4MoeForCausalLM", "DeepseekV32ForCausalLM"}) {
    CAPTURE(other);
    CHECK(refusal(other).code == Code::kUnsupported);
    CHECK(refusal(other).what.find(other) != std::string::npos);
    CHECK(refusal(other).what.find("external engine") != std::string::npos);
  }
  for (const char* other : {"mamba", "llama4", "qwen3next", "gpt-oss", "glm4moe"}) {
    CAPTURE(other);
    Gguf g;
    g.metadata["general.architecture"] = std::string(other);
    const Error error = gguf_config(g).error();
    CHECK(error.code == Code::kUnsupported);
    CHECK(error.what.find(other) != std::string::npos);
    CHECK(error.what.find("qwen3moe") != std::string::npos);
  }
}

}  // namespace
}  // namespace mc::families_test
