// A prefill and a decode worker with an engine each give the tokens of one engine.
#include "serve/engine/cpu_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "pair.h"
#include "small_engine.h"
#include "tests/unit/model/run.h"

using namespace mc;
using namespace mc::serve;

TEST_CASE("real tokens from a prefill and a decode worker are those of one process") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine p = make(2, "auto"), d = make(1, "auto");
  const CpuEngine one = make(1, "plain", 512);  // other threads, kernels and blocks
  PairOptions options;
  options.prefill_engine = &p;
  options.decode_engine = &d;
  Pair pair(loop, options);
  const auto shared = small_prompt(100, 1);
  for (size_t i = 0; i < 6; ++i) {
    auto prompt = shared;
    const auto rest = small_prompt(1 + 29 * i, 10 + i);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const std::string id = "r" + std::to_string(i);
    const PrefillDone done = pair.serve(id, prompt, 20);
    CHECK((done.cached_tokens > 0) == (i > 0));  // the blocks of the shared beginning
    CHECK(pair.answers[id].tokens == alone(one, prompt, 20, kGreedy));
  }
  CHECK(pair.comes_to_rest());
}

TEST_CASE("the decode worker computes a prompt whose KV does not come, with the same tokens") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine p = make(1, "auto"), d = make(1, "auto");
  PairOptions options;
  options.prefill_engine = &p;
  options.decode_engine = &d;
  options.recompute_after = 50ms;
  Pair pair(loop, options);
  const auto prompt = small_prompt(600, 4), gone = small_prompt(300, 5);
  REQUIRE(pair.reserve("r", prompt, 20));  // and no prefill worker hears of it
  REQUIRE(pair.reserve("gone", gone, 20));
  REQUIRE(pair.until([&] { return !pair.answers["r"].finish.empty(); }));
  CHECK(pair.answers["r"].finish == "length");
  CHECK(pair.answers["r"].tokens == alone(p, prompt, 20, kGreedy));
  CHECK(pair.until([&] { return !pair.answers["gone"].finish.empty(); }));
  CHECK(pair.answers["gone"].tokens == alone(p, gone, 20, kGreedy));
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a batch of real requests, some with sampling, gives the tokens that each gives alone") {
  const CpuEngine engine = make(2, "auto");
  std::vector<DecodeItem> items;
  std::vector<std::vector<int32_t>> prompts, want;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<std::byte*>> blocks;
  const std::vector<BlockHash> parents(64);
  std::vector<Sampling> sampling;
  for (uint64_t i = 0; i < 5; ++i) {
    prompts.push_back(small_prompt(5 + 40 * i, i));
    sampling.push_back({.temperature = i % 2 ? 0.9 : 0.0,
                        .seed = i,
                        .ignore_eos = true,
                        .top_k = i == 1 ? 50u : 0u,
                        .top_p = i == 3 ? 0.8 : 1.0});
    want.push_back(alone(engine, prompts[i], 8, sampling[i]));
    const size_t bytes = engine.spec().block_bytes(kBlock), count = prompts[i].size() / kBlock + 2;
    memory.emplace_back(bytes * count);
    blocks.emplace_back();
    for (size_t b = 0; b < count; ++b) blocks[i].push_back(memory[i].data() + b * bytes);
    engine.write({{prompts[i], parents, blocks[i]}, 0, prompts[i].size()});
  }
  for (size_t n = 0; n < 8; ++n) {
    items.clear();
    for (size_t i = 0; i < 5; ++i)
      items.push_back({{prompts[i], parents, blocks[i]}, sampling[i], n == 0});
    const auto tokens = engine.decode(items);
    for (size_t i = 0; i < 5; ++i) {
      CHECK(tokens[i] == want[i][n]);
      prompts[i].push_back(tokens[i]);
    }
  }
}

// Penalties and biases by hand, on what the engine says it is without them: a greedy token's logit
// is not seen, but a bias shows the order of two.
TEST_CASE("penalties, biases and min_p change a worker's tokens as the sampler alone would") {
  const CpuEngine p = make(1, "auto"), d = make(1, "auto");
  const auto prompt = small_prompt(40, 8);
  const auto plain = alone(d, prompt, 40, kGreedy);
  const auto repeats = [](const std::vector<int32_t>& tokens) {
    return tokens.size() - std::set<int32_t>(tokens.begin(), tokens.end()).size();
  };
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.prefill_engine = &p;
  options.decode_engine = &d;
  Pair pair(loop, options);
  int serial = 0;
  // By both workers; the same as one engine alone, asked the same.
  const auto served = [&](const SamplingControls& c, double temperature = 0) {
    pair.controls = c;
    pair.temperature = temperature;
    const std::string id = "r" + std::to_string(++serial);
    pair.serve(id, prompt, 40);
    Sampling s = kGreedy;
    s.temperature = temperature;
    s.min_p = c.min_p;
    s.penalties = {c.presence_penalty, c.frequency_penalty, c.repetition_penalty};
    std::vector<model::Bias> bias;
    for (size_t i = 0; i < c.bias.size(); ++i)
      bias.push_back({c.bias_tokens[i], static_cast<float>(c.bias[i])});
    s.bias = bias;
    s.prompt = prompt.size();
    CHECK(pair.answers[id].tokens == alone(d, prompt, 40, s));
    return pair.answers[id].tokens;
  };
  CHECK(served({}) == plain);
  REQUIRE(repeats(plain) > 0);
  CHECK(repeats(served({.frequency_penalty = 2})) < repeats(plain));
  CHECK(repeats(served({.presence_penalty = 2})) < repeats(plain));
  const auto other = served({.repetition_penalty = 100});
  CHECK(repeats(other) == 0);
  // Positive logits of the prompt's tokens are next to nothing then, negative ones far below all.
  const size_t of_prompt =
      static_cast<size_t>(std::count_if(other.begin(), other.begin() + 20, [&](int32_t t) {
        return std::find(prompt.begin(), prompt.end(), t) != prompt.end();
      }));
  CHECK(of_prompt == 0);
  CHECK(served({.bias_tokens = {7}, .bias = {100}}) == std::vector<int32_t>(40, 7));
  CHECK(served({.bias_tokens = {plain[0]}, .bias = {-100}})[0] != plain[0]);
  CHECK(served({.min_p = 1}, 1) == plain);  // the likeliest alone
  CHECK(served({}, 1) != plain);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("logprobs are those of the model's own distribution, whatever changed it") {
  const CpuEngine p = make(1, "auto"), d = make(1, "auto");
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.prefill_engine = &p;
  options.decode_engine = &d;
  Pair pair(loop, options);
  auto tokens = small_prompt(40, 8);
  pair.controls = {.frequency_penalty = 1, .bias_tokens = {7}, .bias = {4}, .logprobs = 6};
  pair.temperature = 0.8;
  pair.unheard = 7;  // messages of tokens are lost, and sent again
  pair.serve("r", tokens, 12);
  const auto& answer = pair.answers["r"];
  REQUIRE(answer.tokens.size() == 12);
  REQUIRE(answer.logprobs.size() == 12);
  // The logits of a model of its own, and sums that take nothing off.
  model::ThreadPool pool(1);
  const model::Transformer model(
      small(), model::random_weights(small(), 3, model::DType::kF32, pool),
      {model::DType::kBf16, kBlock}, *model::kernels_named("plain"), pool);
  const size_t vocab = small().vocab, prompt = tokens.size();
  tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end());
  mc::test::Sequence sequence(model, tokens.size());
  const auto logits = sequence.add(tokens, tokens.size());
  for (size_t i = 0; i < 12; ++i) {
    const auto row = std::span(logits).subspan((prompt + i - 1) * vocab, vocab);
    long double sum = 0;
    for (const float l : row) sum += std::exp(static_cast<long double>(l));
    const auto of = [&](int32_t id) {
      return static_cast<double>(row[static_cast<size_t>(id)] - std::log(sum));
    };
    const TokenLogprobs& said = answer.logprobs[i];
    CHECK(said.logprob == doctest::Approx(of(answer.tokens[i])).epsilon(1e-9));
    REQUIRE(said.top.size() == 5);
    REQUIRE(said.top_logprobs.size() == 5);
    std::vector<float> sorted(row.begin(), row.end());
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t k = 0; k < 5; ++k) {
      CHECK(row[static_cast<size_t>(said.top[k])] == sorted[k]);
      CHECK(said.top_logprobs[k] == doctest::Approx(of(said.top[k])).epsilon(1e-9));
    }
  }
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a decode worker refuses controls outside their ranges") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const SamplingControls bad[] = {
      {.min_p = 2},
      {.presence_penalty = nan},
      {.frequency_penalty = 3},
      {.repetition_penalty = 0},
      {.bias_tokens = {1}},
      {.logprobs = 22},
      {.bias_tokens = {1}, .bias = {std::numeric_limits<double>::infinity()}},
      {.bias_tokens = {-1}, .bias = {1}},
      {.bias_tokens = {32000}, .bias = {1}},
  };
  for (const SamplingControls& c : bad) {
    pair.controls = c;
    const auto reply = pair.reserve("r", small_prompt(20, 1), 4);
    REQUIRE_FALSE(reply);
    CHECK(reply.error().code == Code::kInvalid);
  }
  pair.controls = {};
  const auto reply = pair.reserve("r", small_prompt(20, 1), 4);
  REQUIRE(reply);
  CHECK(reply->sampling == kControls);
}

TEST_CASE("tokens that end an answer do not come before eos_allowed, unless ignore_eos") {
  const CpuEngine engine = make(1, "auto");
  size_t ends = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const auto prompt = small_prompt(3, seed);
    Sampling s{.temperature = 2, .seed = seed};
    const int32_t held = alone(engine, prompt, 1, s)[0];
    CHECK_FALSE(engine.ends_answer(held));
    s.eos_allowed = true;
    const int32_t free = alone(engine, prompt, 1, s)[0];
    ends += engine.ends_answer(free);
    s = {.temperature = 2, .seed = seed, .ignore_eos = true};
    CHECK(alone(engine, prompt, 1, s)[0] == free);
  }
  CHECK(ends > 0);
}

TEST_CASE("the model's fingerprint differs by engine, format and weights") {
  const auto spec = [](const char* engine, const char* kv) {
    const auto info = open_model_info({"tiny", engine, kv});
    REQUIRE(info);
    return info->spec;
  };
  const auto dummy = spec("auto", "auto"), cpu = spec("cpu", "auto"), half = spec("cpu", "f16");
  CHECK(dummy.fingerprint(256) == cost::tiny().fingerprint(256));
  CHECK(dummy.pool_name() == "tiny");
  CHECK(cpu.fingerprint(256) != dummy.fingerprint(256));
  CHECK(half.fingerprint(256) != cpu.fingerprint(256));
  CHECK(half.pool_name() != cpu.pool_name());
  CHECK(cpu.block_bytes(256) == dummy.block_bytes(256));
  CHECK(cpu.context_max == dummy.context_max);
}

TEST_CASE("an engine that this machine lacks is refused, with the ones it has") {
  CHECK(open_engine({"/nowhere", "cpu", "auto"}, {}, 16).error().code == Code::kNotFound);
  CHECK(open_engine({"tiny", "cpu", "f8"}, {}, 16).error().what.find("bf16") != std::string::npos);
  const auto on_device = open_model_info({"tiny", "cuda", "q8"});
  REQUIRE_FALSE(on_device);
  CHECK(on_device.error().code == Code::kUnsupported);
  CHECK(on_device.error().what.find("--kv-type q8: the cuda engine") != std::string::npos);
  CHECK(open_model_info({"tiny", "cpu", "q8"})->spec.kv_bytes_per_token() == 2 * 2 * 4 * 34);
  CHECK(open_engine({"tiny", "cpu", "auto"}, {1, "sse9"}, 16).error().code == Code::kUnsupported);
  CHECK_FALSE(open_engine({"tiny", "cpu", "auto"}, {1u << 20, "auto"}, 16).has_value());
  CHECK(open_engine({"tiny", "auto", "auto"}, {}, 16).value()->modelled_time());
}
