// Guessed tokens change no answer: those of a batch that guesses are those of one token a step.
#include <algorithm>

#include "pair.h"
#include "serve/runtime/decode_step.h"
#include "small_engine.h"

namespace mc::serve {
namespace speculation_test {
namespace {

// A prompt whose parts come again, as where an answer quotes it.
std::vector<int32_t> repetitive(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> out = small_prompt(std::min<size_t>(n, 12), seed);
  while (out.size() < n) {
    const size_t from = random.below(out.size()), count = 1 + random.below(12);
    for (size_t i = 0; i < count && out.size() < n; ++i) out.push_back(out[from + i]);
  }
  return out;
}

struct Lived {  // a sequence, and memory for its blocks
  Lived(const CpuEngine& engine, const Reserve& m, uint32_t speculate)
      : s(make_sequence(m, engine.block_tokens())) {
    const size_t bytes = engine.spec().block_bytes(engine.block_tokens());
    const size_t n = (m.prompt.size() + m.max_tokens) / engine.block_tokens() + 1;
    memory.resize(n * bytes);
    for (size_t i = 0; i < n; ++i) s->blocks.push_back(memory.data() + i * bytes);
    engine.write({s->view(), 0, s->tokens.size()});
    if (speculate > 0) s->speculation.emplace(speculate);
  }
  SequencePtr s;
  std::vector<std::byte> memory;
  std::vector<TokenLogprobs> logprobs;
  std::string finish;
};

struct Outcome {
  size_t steps = 0, guessed = 0, accepted = 0;
};

Outcome run_all(const CpuEngine& engine, std::vector<Lived>& all) {
  Outcome o;
  while (true) {
    std::vector<SequencePtr> batch;
    std::vector<Lived*> whose;
    for (Lived& one : all)
      if (one.finish.empty()) {
        batch.push_back(one.s);
        whose.push_back(&one);
      }
    if (batch.empty()) return o;
    ++o.steps;
    DecodeStep step(engine, batch);
    step.run();
    for (size_t i = 0; i < whose.size(); ++i) {
      const DecodeStep::Drawn& drawn = step.drawn()[i];
      REQUIRE(drawn.tokens.size() >= 1);
      REQUIRE(drawn.tokens.size() <= drawn.guessed + 1);
      o.guessed += drawn.guessed;
      o.accepted += drawn.tokens.size() - 1;
      auto& logprobs = whose[i]->logprobs;
      logprobs.insert(logprobs.end(), drawn.logprobs.begin(), drawn.logprobs.end());
      whose[i]->finish = finish_of(engine, *whose[i]->s, drawn.tokens.back());
    }
  }
}

// Requests of every kind: greedy and sampled, with penalties, logprobs, stop tokens, biases and a
// least number of tokens.
Reserve request(uint64_t seed) {
  Reserve m;
  m.prompt = repetitive(4 + seed % 61, seed);
  m.max_tokens = static_cast<uint32_t>(1 + seed * 7 % 60);
  m.seed = seed;
  m.temperature = seed % 3 == 1 ? 0.7 : 0;
  m.top_k = seed % 5 == 1 ? 5 : 0;
  m.ignore_eos = seed % 2 == 0;
  m.min_tokens = seed % 4 == 1 ? 9 : 0;
  if (seed % 7 == 3) m.controls.repetition_penalty = 1.3;
  if (seed % 7 == 4) m.controls.frequency_penalty = 0.4;
  if (seed % 4 == 2) m.controls.logprobs = 3;
  if (seed % 6 == 5) m.stop_tokens = {m.prompt[0], m.prompt[1], 17, 42};
  if (seed % 9 == 8) {
    m.controls.bias_tokens = {m.prompt[2]};
    m.controls.bias = {4};
  }
  return m;
}

TEST_CASE("200 requests of every kind get the tokens, logprobs and ends of one token a step") {
  const CpuEngine engine = make(1, "auto");
  Outcome sum;
  for (uint64_t first = 0; first < 200; first += 4) {
    std::vector<Lived> plain, guessed;
    for (uint64_t seed = first; seed < first + 4; ++seed) {
      plain.emplace_back(engine, request(seed), 0);
      guessed.emplace_back(engine, request(seed), 1 + seed % 9);
    }
    const Outcome none = run_all(engine, plain), some = run_all(engine, guessed);
    CHECK(none.guessed == 0);
    sum.guessed += some.guessed;
    sum.accepted += some.accepted;
    for (size_t i = 0; i < plain.size(); ++i) {
      CAPTURE(first + i);
      CHECK(guessed[i].s->tokens == plain[i].s->tokens);
      CHECK(guessed[i].s->parents == plain[i].s->parents);
      CHECK(guessed[i].finish == plain[i].finish);
      REQUIRE(guessed[i].logprobs.size() == plain[i].logprobs.size());
      for (size_t t = 0; t < plain[i].logprobs.size(); ++t) {
        CHECK(guessed[i].logprobs[t].logprob == plain[i].logprobs[t].logprob);
        CHECK(guessed[i].logprobs[t].top == plain[i].logprobs[t].top);
      }
      // The KV that others may reuse is the same, whatever was guessed beyond it.
      const size_t whole = plain[i].s->written() / kBlock;
      CHECK(std::equal(plain[i].memory.begin(),
                       plain[i].memory.begin() +
                           static_cast<ptrdiff_t>(whole * engine.spec().block_bytes(kBlock)),
                       guessed[i].memory.begin()));
    }
  }
  CHECK(sum.accepted > 500);          // of what was guessed, much comes true,
  CHECK(sum.guessed > sum.accepted);  // and something does not
}

TEST_CASE("a request's stop tokens do not come before min_tokens") {
  const CpuEngine engine = make(1, "auto");
  for (const uint32_t speculate : {0u, 5u}) {
    Reserve m;
    m.prompt = repetitive(30, 3);
    m.max_tokens = 12;
    m.ignore_eos = true;
    const auto answer = [&] {
      std::vector<Lived> one;
      one.emplace_back(engine, m, speculate);
      run_all(engine, one);
      const auto& all = one[0].s->tokens;
      return std::vector<int32_t>(all.begin() + static_cast<ptrdiff_t>(m.prompt.size()), all.end());
    };
    const int32_t first = answer()[0];
    m.stop_tokens = {first};
    CHECK(answer() == std::vector<int32_t>{first});
    m.min_tokens = 6;
    const auto later = answer();
    CHECK(later.size() >= 6);
    CHECK(std::find(later.begin(), later.begin() + 5, first) == later.begin() + 5);
  }
}

TEST_CASE("a batch too large to gain from guesses makes none") {
  const CpuEngine engine = make(1, "auto");
  Reserve m;
  m.prompt = std::vector<int32_t>(20, 9);
  m.max_tokens = 30;
  m.ignore_eos = true;
  for (const size_t n : {1u, 5u, 6u, 20u}) {
    CAPTURE(n);
    std::vector<Lived> all;
    for (size_t i = 0; i < n; ++i) all.emplace_back(engine, m, 8);
    CHECK((run_all(engine, all).guessed > 0) == (n < 6));
  }
}

TEST_CASE("an answer that repeats itself takes fewer steps") {
  const CpuEngine engine = make(1, "auto");
  Reserve m;
  m.prompt = std::vector<int32_t>(20, 9);
  m.max_tokens = 200;
  m.ignore_eos = true;
  std::vector<Lived> plain, guessed;
  plain.emplace_back(engine, m, 0);
  guessed.emplace_back(engine, m, 8);
  CHECK(run_all(engine, plain).steps == 200);
  CHECK(run_all(engine, guessed).steps < 120);
  CHECK(plain[0].s->tokens == guessed[0].s->tokens);
}

// Prompts together on a worker whose blocks do not suffice for all answers.
struct Cluster {
  Cluster(io::Loop& loop, const CpuEngine& engine, uint32_t speculate, uint32_t blocks,
          const std::string& name, const std::string& preempt = "swap")
      : pair(loop, options(engine, speculate, blocks, preempt), name) {}
  static PairOptions options(const CpuEngine& engine, uint32_t speculate, uint32_t blocks,
                             const std::string& preempt) {
    PairOptions o;
    o.prefill_engine = o.decode_engine = &engine;
    o.speculate = speculate;
    o.decode_blocks = blocks;
    o.preempt = preempt;
    return o;
  }
  void serve(size_t count, uint32_t output) {
    std::vector<uint64_t> txs;
    for (size_t i = 0; i < count; ++i) {
      const auto target = pair.reserve(id(i), repetitive(24 + i, i), output);
      REQUIRE_MESSAGE(target, target.error().what);
      const auto tx = pair.allocate(id(i), repetitive(24 + i, i), *target);
      REQUIRE_MESSAGE(tx, tx.error().what);
      txs.push_back(tx->tx);
    }
    size_t done = 0;
    for (const uint64_t tx : txs)
      pair.to_p->call<Prefill>(Prefill{tx}, 20s * kSlow, [&done](const Result<PrefillDone>& r) {
        CHECK(r.has_value());
        ++done;
      });
    REQUIRE(pair.until([&] { return done == txs.size(); }));
    for (const uint64_t tx : txs) CHECK(pair.call(*pair.to_p, TxCommit{tx}));
    for (size_t i = 0; i < count; ++i)
      REQUIRE(pair.until([&] { return !pair.answers[id(i)].finish.empty(); }));
  }
  static std::string id(size_t i) { return "r" + std::to_string(i); }
  uint64_t count(const char* name) { return pair.d_metrics.counter(name, "").value(); }
  Pair pair;
};

TEST_CASE("preempted in the middle, answers with guesses are the same and leave no block") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  constexpr size_t kCount = 4;
  constexpr uint32_t kOutput = 120;
  Cluster plain(loop, engine, 0, 64, "plain");
  plain.serve(kCount, kOutput);
  CHECK(plain.count("vllm:spec_decode_num_draft_tokens_total") == 0);
  for (const char* preempt : {"swap", "recompute"}) {
    CAPTURE(preempt);
    Cluster tight(loop, engine, 8, 18, preempt, preempt);
    tight.serve(kCount, kOutput);
    CHECK(tight.count("vllm:num_preemptions_total") > 0);
    CHECK(tight.count("vllm:spec_decode_num_accepted_tokens_total") > 20);
    CHECK(tight.count("vllm:spec_decode_num_draft_tokens_total") >=
          tight.count("vllm:spec_decode_num_accepted_tokens_total"));
    CHECK(tight.count("vllm:generation_tokens_total") == kCount * kOutput);
    for (size_t i = 0; i < kCount; ++i) {
      CHECK(tight.pair.answers[Cluster::id(i)].tokens == plain.pair.answers[Cluster::id(i)].tokens);
      CHECK(tight.pair.answers[Cluster::id(i)].finish == "length");
    }
    CHECK(tight.pair.comes_to_rest());
  }
}

TEST_CASE("guesses preempt nobody and fit the last block of a full pool") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  // Prompt and answer take the whole pool to its last token.
  Cluster full(loop, engine, 8, 9, "full"), wide(loop, engine, 0, 64, "wide");
  for (Cluster* c : {&full, &wide}) c->serve(1, 16 * 9 - 24);
  CHECK(full.pair.answers["r0"].tokens == wide.pair.answers["r0"].tokens);
  CHECK(full.count("vllm:num_preemptions_total") == 0);
  CHECK(full.count("vllm:spec_decode_num_accepted_tokens_total") > 0);
  CHECK(full.pair.comes_to_rest());
}

TEST_CASE("constrained answers with guesses are the same") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  std::vector<Answer> answers;
  for (const uint32_t speculate : {0u, 8u}) {
    PairOptions options = Cluster::options(engine, speculate, 64, "auto");
    options.tokenizer = []() -> Result<model::Tokenizer> {
      return model::Tokenizer::bytes_only(small().vocab);
    };
    Pair pair(loop, options, std::to_string(speculate));
    for (const double temperature : {0.0, 1.5}) {
      pair.temperature = temperature;
      pair.seed = 5;
      pair.constraint = {static_cast<uint32_t>(model::grammar::Form::kRegex),
                         "((ab|cd)(12|34)){20}x?"};
      const std::string id = number_text(temperature);
      const auto target = pair.reserve(id, small_prompt(20, 1), 120);
      REQUIRE_MESSAGE(target, target.error().what);
      const auto tx = pair.allocate(id, small_prompt(20, 1), *target);
      REQUIRE(tx);
      REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx, {}}, 20s * kSlow));
      REQUIRE(pair.until([&] { return !pair.answers[id].finish.empty(); }));
      REQUIRE(pair.call(*pair.to_p, TxCommit{tx->tx, {}}));
      CHECK(pair.answers[id].error == "");
      CHECK(pair.answers[id].tokens.size() >= 80);
      answers.push_back(pair.answers[id]);
    }
    const uint64_t accepted =
        pair.d_metrics.counter("vllm:spec_decode_num_accepted_tokens_total", "").value();
    CHECK((accepted > 0) == (speculate > 0));
    CHECK(pair.comes_to_rest());
  }
  for (const size_t i : {0u, 1u}) {
    CHECK(answers[i].tokens == answers[i + 2].tokens);
    CHECK(answers[i].finish == answers[i + 2].finish);
  }
}

TEST_CASE("an engine that checks no guesses makes none") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.speculate = 8;
  Pair pair(loop, options);
  pair.serve("r", std::vector<int32_t>(40, 7), 30);
  CHECK(pair.d_metrics.counter("vllm:spec_decode_num_draft_tokens_total", "").value() == 0);
}

}  // namespace
}  // namespace speculation_test
}  // namespace mc::serve
