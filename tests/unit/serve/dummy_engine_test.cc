#include "serve/engine/dummy_engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <vector>

#include "base/random.h"

namespace mc::serve {

namespace dummy_engine_test {

namespace {

constexpr uint32_t kB = 16;

cost::ModelSpec odd_spec() {  // rows of 15 bytes: no multiple of a word
  cost::ModelSpec s = cost::tiny();
  s.layers = 3;
  s.kv_heads = 1;
  s.head_dim = 5;
  s.element_bytes = 3;
  s.mla = true;
  return s;
}

// A sequence that owns its memory, with its blocks in any order.
struct Sequence {
  Sequence(const cost::ModelSpec& spec, std::vector<int32_t> t, size_t room = 0)
      : tokens(std::move(t)), parents{BlockHash{}} {
    for (const BlockHash& h : chain_hashes(tokens, kB)) parents.push_back(h);
    const size_t n = (tokens.size() + room + kB - 1) / kB, bytes = spec.block_bytes(kB);
    memory.assign(n * bytes, std::byte{0xEE});
    for (size_t i = 0; i < n; ++i) blocks.push_back(memory.data() + (n - 1 - i) * bytes);
  }
  SequenceView view() const { return {tokens, parents, blocks}; }
  void push(int32_t token) {
    tokens.push_back(token);
    if (tokens.size() % kB == 0)
      parents.push_back(
          chain_hash(parents.back(), std::span(tokens).subspan(tokens.size() - kB, kB)));
  }
  std::vector<int32_t> tokens;
  std::vector<BlockHash> parents;
  std::vector<std::byte> memory;
  std::vector<std::byte*> blocks;
};

std::vector<int32_t> random_tokens(Random& random, size_t n) {
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(32000));
  return tokens;
}

}  // namespace

TEST_CASE("dummy engine: the KV is the same however the prompt is cut into chunks and layers") {
  Random random(3);
  for (const auto& spec : {cost::tiny(), odd_spec()}) {
    const DummyEngine engine(spec, kB);
    for (int round = 0; round < 50; ++round) {
      const auto tokens = random_tokens(random, 1 + random.below(100));
      Sequence whole(spec, tokens), cut(spec, tokens);
      engine.write({whole.view(), 0, tokens.size()});
      for (size_t at = 0; at < tokens.size();) {
        const size_t end = std::min(tokens.size(), at + 1 + random.below(40));
        engine.write({cut.view(), at, end});
        at = end;
      }
      CHECK(whole.memory == cut.memory);
      CHECK(engine.verify(whole.view()) == 0);
    }
  }
}

TEST_CASE("dummy engine: KV of generated tokens continues that of the prompt") {
  Random random(4);
  const cost::ModelSpec spec = cost::tiny();
  const DummyEngine engine(spec, kB);
  Sequence s(spec, random_tokens(random, 21), 60);
  engine.write({s.view(), 0, 21});
  for (int i = 0; i < 60; ++i) {
    s.push(engine.next_token(s.view(), {}));
    engine.write({s.view(), s.tokens.size() - 1, s.tokens.size()});
  }
  CHECK(engine.verify(s.view()) == 0);
  Sequence again(spec, s.tokens);
  engine.write({again.view(), 0, s.tokens.size()});
  CHECK(again.memory == s.memory);
}

TEST_CASE("dummy engine: penalties and biases change its tokens, and nothing else does") {
  Random random(8);
  const cost::ModelSpec spec = cost::tiny();
  const DummyEngine engine(spec, kB);
  Sequence s(spec, random_tokens(random, 21), 60);
  engine.write({s.view(), 0, 21});
  const auto next = [&](const Sampling& sampling) {
    const DecodeItem item{s.view(), sampling, true};
    return engine.decode({&item, 1})[0];
  };
  for (const double temperature : {0.0, 1.0}) {
    Sampling asked{.temperature = temperature, .seed = 5};
    const int32_t plain = next(asked);
    CHECK(plain == engine.next_token(s.view(), asked));
    asked.min_p = 0.5;
    CHECK(next(asked) == plain);
    const std::vector<model::Bias> bias = {{plain, -100}};
    asked.bias = bias;
    const int32_t other = next(asked);
    CHECK(other != plain);
    CHECK(other >= DummyEngine::kSpecial);
    CHECK(next(asked) == other);
    asked.bias = {};
    asked.penalties.frequency = 2;
    s.push(plain);  // once more would be over what others have
    asked.prompt = 0;
    engine.write({s.view(), s.tokens.size() - 1, s.tokens.size()});
    const auto seen = s.tokens;
    CHECK(std::find(seen.begin(), seen.end(), next(asked)) == seen.end());
  }
}

TEST_CASE("dummy engine: one flipped bit anywhere in a token's KV is found, in its block only") {
  Random random(5);
  for (const auto& spec : {cost::tiny(), odd_spec()}) {
    const DummyEngine engine(spec, kB);
    Sequence s(spec, random_tokens(random, 3 * kB));
    engine.write({s.view(), 0, s.tokens.size()});
    for (size_t at = 0; at < s.memory.size(); ++at) {
      const auto bit = static_cast<std::byte>(1u << random.below(8));
      s.memory[at] ^= bit;
      if (engine.verify(s.view()) != 1) FAIL("byte ", at, " does not matter");
      s.memory[at] ^= bit;
    }
    CHECK(engine.verify(s.view()) == 0);
  }
}

TEST_CASE("dummy engine: memory behind the last token is not verified") {
  Random random(6);
  const DummyEngine engine(cost::tiny(), kB);
  Sequence s(cost::tiny(), random_tokens(random, kB + 1));
  engine.write({s.view(), 0, s.tokens.size()});
  // Token 1 of the second block, first plane of layer 0: rows of 64 bytes.
  CHECK(s.blocks[1][63] != std::byte{0xEE});
  for (size_t i = 64; i < kB * 64; ++i) CHECK(s.blocks[1][i] == std::byte{0xEE});
  CHECK(engine.verify(s.view()) == 0);
}

TEST_CASE("dummy engine: swapped and stale blocks, and those of another prompt, are found") {
  Random random(7);
  const cost::ModelSpec spec = cost::tiny();
  const DummyEngine engine(spec, kB);
  Sequence s(spec, random_tokens(random, 4 * kB));
  engine.write({s.view(), 0, s.tokens.size()});
  std::swap(s.blocks[1], s.blocks[2]);
  CHECK(engine.verify(s.view()) == 2);
  std::swap(s.blocks[1], s.blocks[2]);

  SUBCASE("the same tokens after another prefix") {
    auto tokens = s.tokens;
    tokens[0] ^= 1;
    Sequence other(spec, tokens);
    engine.write({other.view(), 0, tokens.size()});
    s.blocks[2] = other.blocks[2];
    CHECK(engine.verify(s.view()) == 1);
  }
  SUBCASE("a block of repeated tokens one place too far") {
    Sequence same(spec, std::vector<int32_t>(4 * kB, 77));
    engine.write({same.view(), 0, 4 * kB});
    std::swap(same.blocks[1], same.blocks[2]);
    CHECK(engine.verify(same.view()) == 2);
  }
  SUBCASE("a layer in the place of another") {
    const size_t layer = spec.layer_bytes(kB);
    std::swap_ranges(s.blocks[3], s.blocks[3] + layer, s.blocks[3] + layer);
    CHECK(engine.verify(s.view()) == 1);
  }
  SUBCASE("another key, another salt") {
    CHECK(DummyEngine(spec, kB, 9).verify(s.view()) == 4);
    s.parents[0].bytes[31] ^= 1;
    CHECK(engine.verify(s.view()) == 1);
  }
}

TEST_CASE("dummy engine: the next token is read from the last position's KV") {
  Random random(8);
  const DummyEngine engine(cost::tiny(), kB);
  Sequence s(cost::tiny(), random_tokens(random, 2 * kB + 3));
  engine.write({s.view(), 0, s.tokens.size()});
  const int32_t right = engine.next_token(s.view(), {});
  CHECK(engine.next_token(s.view(), {}) == right);
  for (uint64_t plane = 0; plane < 16; ++plane) {  // 4 layers x (K, V) x 2 heads
    std::byte& read = s.blocks[2][(plane * kB + 2) * 64 + random.below(64)];
    read ^= std::byte{1};
    CHECK(engine.next_token(s.view(), {}) != right);
    read ^= std::byte{1};
  }
  CHECK(engine.next_token(s.view(), {.temperature = 1, .seed = 1}) !=
        engine.next_token(s.view(), {.temperature = 1, .seed = 2}));
}

TEST_CASE("dummy engine: tokens are in the vocabulary, special only when an end is wanted") {
  cost::ModelSpec spec = cost::tiny();
  spec.vocab = 40;
  const DummyEngine engine(spec, kB);
  std::set<int32_t> plain, ending;
  for (int32_t t = 0; t < 3000; ++t) {
    Sequence s(spec, {t});
    engine.write({s.view(), 0, 1});
    plain.insert(engine.next_token(s.view(), {}));
    ending.insert(engine.next_token(s.view(), {.eos_allowed = true}));
  }
  CHECK(plain.size() == 37);
  CHECK(*plain.begin() == 3);
  CHECK(*plain.rbegin() == 39);
  CHECK(*ending.begin() == DummyEngine::kEos);
  CHECK(ending.size() == 38);
}

TEST_CASE("timing: chunks and the load add up to the prefill, whatever the cut") {
  const Timing timing{cost::tiny(), 3.0};
  Duration sum = timing.load(512);
  for (uint64_t at = 512; at < 10000; at += 1024)
    sum += timing.chunk(at, std::min<uint64_t>(at + 1024, 10000), 512);
  CHECK(std::abs((sum - timing.prefill(10000, 512)).count()) < 1000);  // ns, of rounding
  CHECK(Timing{cost::tiny(), 0}.prefill(10000, 0).count() == 0);
  CHECK(timing.step(0, 0).count() == 0);
}

}  // namespace dummy_engine_test
}  // namespace mc::serve
