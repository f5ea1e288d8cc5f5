// A transformer of a few thousand weights, and the tokens that it gives alone.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "pair.h"
#include "serve/engine/cpu_engine.h"

namespace mc::serve {

inline model::ModelConfig small() {
  model::ModelConfig c;
  c.name = "small";
  c.vocab = 200;
  c.hidden = 48;
  c.intermediate = 64;
  c.layers = 3;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.context_max = 2000;
  c.eos = {2, 5};
  return c;
}

inline CpuEngine make(uint32_t threads, const char* kernels, uint32_t block = kBlock,
                      model::KvFormat kv = model::DType::kBf16, uint64_t seed = 3) {
  auto pool = std::make_unique<model::ThreadPool>(threads);
  auto weights = model::random_weights(small(), seed, model::DType::kF32, *pool);
  return {model::spec_of(small(), kv),    small(),        std::move(weights), {kv, block},
          *model::kernels_named(kernels), std::move(pool)};
}

inline std::vector<int32_t> small_prompt(size_t n, uint64_t seed) {
  auto tokens = prompt_of(n, seed);
  for (int32_t& t : tokens) t %= 200;
  return tokens;
}

// The tokens of one process, which computes the whole prompt at once in its own blocks.
inline std::vector<int32_t> alone(const CpuEngine& engine, std::vector<int32_t> tokens, size_t n,
                                  Sampling sampling) {
  const size_t blocks = (tokens.size() + n) / engine.block_tokens() + 1;
  const size_t bytes = engine.spec().block_bytes(engine.block_tokens());
  std::vector<std::byte> memory(blocks * bytes);
  std::vector<std::byte*> at;
  for (size_t i = 0; i < blocks; ++i) at.push_back(memory.data() + i * bytes);
  const std::vector<BlockHash> parents(blocks);
  engine.write({{tokens, parents, at}, 0, tokens.size()});
  std::vector<int32_t> out;
  while (out.size() < n) {
    const DecodeItem item{{tokens, parents, at}, sampling, out.empty()};
    out.push_back(engine.decode({&item, 1})[0]);
    tokens.push_back(out.back());
  }
  return out;
}

inline constexpr Sampling kGreedy{.ignore_eos = true};

// Prompts of these lengths, all of them twice, one after the other: the tokens of `one` process.
inline void serve_twice(Pair& pair, const CpuEngine& one, std::initializer_list<size_t> lengths) {
  int serial = 0;
  for (int turn = 0; turn < 2; ++turn)
    for (const size_t n : lengths) {
      CAPTURE(n);
      const std::string id = std::to_string(++serial);
      pair.serve(id, small_prompt(n, n), 6);
      CHECK(pair.answers[id].tokens == alone(one, small_prompt(n, n), 6, kGreedy));
      REQUIRE(pair.comes_to_rest());  // the next one needs the blocks being published
    }
}

}  // namespace mc::serve
