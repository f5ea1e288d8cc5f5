// Constrained answers of a decode worker: valid, ended where their form ends, and refused for a
// reason.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "gate.h"
#include "pair.h"
#include "serve/engine/next_token.h"
#include "small_engine.h"

using namespace mc;
using namespace mc::serve;

namespace {

using model::grammar::Form;

Constraint of(Form form, const std::string& text) { return {static_cast<uint32_t>(form), text}; }

PairOptions options_of(const CpuEngine& engine) {
  PairOptions o;
  o.prefill_engine = o.decode_engine = &engine;
  o.tokenizer = []() -> Result<model::Tokenizer> {
    return model::Tokenizer::bytes_only(small().vocab);
  };
  return o;
}

// The whole answer, without a token that ends it.
std::string text_of(const CpuEngine& engine, const Answer& answer) {
  std::string text;
  for (const int32_t t : answer.tokens)
    if (!engine.ends_answer(t)) text += static_cast<char>(t);
  return text;
}

const Answer& run(Pair& pair, const std::string& id, uint32_t max_tokens) {
  const auto prompt = small_prompt(20, 1);
  const auto target = pair.reserve(id, prompt, max_tokens);
  REQUIRE_MESSAGE(target, target.error().what);
  CHECK(target->sampling == kConstraints);
  const auto tx = pair.allocate(id, prompt, *target);
  REQUIRE(tx);
  REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx, {}}, 20s * kSlow));
  REQUIRE(pair.until([&] { return !pair.answers[id].finish.empty(); }));
  REQUIRE(pair.call(*pair.to_p, TxCommit{tx->tx, {}}));
  return pair.answers[id];
}

// Lets some tokens through.
class Some final : public TokenMask {
 public:
  explicit Some(std::vector<uint64_t> words, bool end_only = false)
      : words_(std::move(words)), end_only_(end_only) {}
  Allowed wait() override { return {words_, end_only_}; }

 private:
  std::vector<uint64_t> words_;
  bool end_only_;
};

}  // namespace

TEST_CASE("a mask comes before biases and temperature, and logprobs are the model's own") {
  Some some({0b0110});
  TokenLogprobs said;
  DecodeItem item;
  item.mask = &some;
  item.logprobs = &said;
  item.sampling.eos_allowed = true;
  item.sampling.logprobs = 2;
  const model::Bias bias{0, 100};
  item.sampling.bias = {&bias, 1};
  CHECK(item.for_host());
  std::vector<float> logits = {5, 1, 2, 9};
  CHECK(next_token(logits, item, {}) == 2);
  CHECK(said.top == std::vector<int32_t>{3});  // not what the mask left
  CHECK(said.logprob == doctest::Approx(2 - std::log(std::exp(5.0) + std::exp(1.0) + std::exp(2.0) +
                                                     std::exp(9.0))));
  // Where nothing but the end may come, it comes before min_tokens too.
  Some end({0b1000}, true);
  item.mask = &end;
  item.sampling.eos_allowed = false;
  item.sampling.logprobs = 0;
  const std::vector<int32_t> ends = {3};
  logits = {5, 1, 2, -9};
  CHECK(next_token(logits, item, ends) == 3);
}

TEST_CASE("constrained answers of a small model are valid, each seed another") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  Pair pair(loop, options_of(engine));
  pair.temperature = 2;
  const std::string schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},"n":{"type":
      "integer","minimum":-5,"maximum":120},"kind":{"enum":["red","green"]},"list":{"type":"array",
      "items":{"type":"boolean"},"maxItems":3}},"required":["name","n","kind"]})";
  std::set<std::string> texts;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    pair.seed = seed;
    pair.constraint = of(Form::kJsonSchema, schema);
    const Answer& a = run(pair, "json" + std::to_string(seed), 600);
    const std::string text = text_of(engine, a);
    CAPTURE(text);
    CHECK(a.finish == "stop");
    const auto value = parse_json(text);
    REQUIRE_MESSAGE(value, value.error().what);
    CHECK((*value)["name"].is_string());
    CHECK((*value)["n"] >= -5);
    CHECK((*value)["n"] <= 120);
    CHECK(((*value)["kind"] == "red" || (*value)["kind"] == "green"));
    texts.insert(text);
  }
  CHECK(texts.size() > 6);
  pair.constraint = of(Form::kChoice, R"(["yes","no"])");
  const std::string choice = text_of(engine, run(pair, "choice", 10));
  CHECK((choice == "yes" || choice == "no"));
  pair.constraint = of(Form::kRegex, "[0-9]{3}-[a-f]{2}");
  const Answer& regex = run(pair, "regex", 20);
  CHECK(regex.finish == "stop");  // at its last character: no token is drawn for the end
  CHECK(regex.tokens.size() == 6);
  CHECK(pair.comes_to_rest());
}

// F95
TEST_CASE("an answer that another worker began goes on with the same draws, penalties and form") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  Pair pair(loop, options_of(engine));
  pair.temperature = 1;
  pair.seed = 11;
  pair.controls.presence_penalty = 2;
  pair.controls.frequency_penalty = 1;
  pair.controls.repetition_penalty = 1.5;
  for (const bool constrained : {false, true}) {
    CAPTURE(constrained);
    pair.constraint = constrained ? of(Form::kRegex, "(ab|ba|c){7}[x-z]{20}") : Constraint{};
    const std::string id = constrained ? "guided" : "free";
    const std::vector<int32_t> prompt = small_prompt(20, 1);
    const auto tokens = [&](const std::string& request, const std::vector<int32_t>& from,
                            uint32_t max_tokens) {
      const auto target = pair.reserve(request, from, max_tokens);
      REQUIRE_MESSAGE(target, target.error().what);
      CHECK(target->continues);
      const auto tx = pair.allocate(request, from, *target);
      REQUIRE(tx);
      REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx, {}}, 20s * kSlow));
      REQUIRE(pair.until([&] { return !pair.answers[request].finish.empty(); }));
      REQUIRE(pair.call(*pair.to_p, TxCommit{tx->tx, {}}));
      CHECK(pair.answers[request].error == "");
      return pair.answers[request].tokens;
    };
    pair.answered = 0;
    const std::vector<int32_t> whole = tokens(id, prompt, 24);
    for (const size_t cut : {1u, 5u, 13u, 20u}) {
      CAPTURE(cut);
      const auto at = whole.begin() + static_cast<std::ptrdiff_t>(cut);
      std::vector<int32_t> so_far = prompt;
      so_far.insert(so_far.end(), whole.begin(), at);
      pair.answered = static_cast<uint32_t>(cut);
      const auto rest = tokens(id + std::to_string(cut), so_far, 24 - pair.answered);
      CHECK(rest == std::vector<int32_t>(at, whole.end()));
    }
  }
  pair.answered = 20;
  const auto refused = pair.reserve("all", small_prompt(20, 1));
  REQUIRE(!refused);
  CHECK(refused.error().what.find("want fewer") != std::string::npos);
  pair.constraint = of(Form::kRegex, "x+");
  pair.answered = 3;
  const Answer& odd = run(pair, "odd", 4);
  CHECK(odd.finish == "error");
  CHECK(odd.error.find("does not fit its constraint") != std::string::npos);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a constraint longer than a text of a message may be comes to its worker whole") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  Pair pair(loop, options_of(engine));
  const std::string grammar = "root ::= \"ab\" # " + std::string(100'000, 'x') + "\n";
  pair.constraint = of(Form::kGbnf, grammar);
  const Answer& a = run(pair, "long", 7);
  CHECK(a.error == "");
  CHECK(a.finish == "stop");
  CHECK(text_of(engine, a) == "ab");
  CHECK(pair.comes_to_rest());
}

TEST_CASE("max_tokens cuts a constrained answer, which begins as its form does") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  Pair pair(loop, options_of(engine));
  pair.constraint = of(Form::kRegex, "(ab){50}");
  const Answer& a = run(pair, "cut", 7);
  CHECK(a.finish == "length");
  CHECK(text_of(engine, a) == "abababa");
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a constraint that a worker cannot use fails its request alone, with the reason") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  Pair pair(loop, options_of(engine));
  pair.constraint = of(Form::kRegex, "(a");
  const Answer& bad = run(pair, "bad", 7);
  CHECK(bad.finish == "error");
  CHECK(bad.error.find("'(' without ')'") != std::string::npos);
  pair.constraint = of(Form::kChoice, "[\"\xC8\x80\"]");  // byte 200: no token of the model
  const Answer& none = run(pair, "none", 7);
  CHECK(none.finish == "error");
  CHECK(none.error.find("no token of the vocabulary") != std::string::npos);
  pair.constraint = {99, "x"};
  const auto refused = pair.reserve("unknown", small_prompt(20, 1));
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kUnsupported);
  pair.constraint = {};
  pair.serve("plain", small_prompt(20, 1));
  CHECK(pair.comes_to_rest());
}

TEST_CASE("KV that came in time is not late because a grammar is being compiled") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  Gate gate;
  PairOptions options = options_of(engine);
  options.recompute_after = 100ms * kSlow;
  options.tokenizer = [&gate]() -> Result<model::Tokenizer> {
    (void)gate.wait();
    return model::Tokenizer::bytes_only(small().vocab);
  };
  Pair pair(loop, options);
  loop.after(2 * options.recompute_after, [&] { gate.open(); });
  pair.constraint = of(Form::kRegex, "(ab){50}");
  const Answer& a = run(pair, "slow", 7);
  CHECK(a.error == "");
  CHECK(text_of(engine, a) == "abababa");
  CHECK(pair.comes_to_rest());
}

TEST_CASE("no step waits for the grammar of a request whose KV was computed here") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  Gate gate;
  PairOptions options = options_of(engine);
  options.recompute_after = 20ms;
  options.tokenizer = [&gate]() -> Result<model::Tokenizer> {
    (void)gate.wait();
    return model::Tokenizer::bytes_only(small().vocab);
  };
  Pair pair(loop, options);
  pair.constraint = of(Form::kRegex, "(ab){50}");
  REQUIRE(pair.reserve("guided", small_prompt(20, 1), 7));  // and no prefill worker hears of it
  const Counter& computed = pair.d_metrics.counter("mc_engine_recomputed_requests_total", "");
  REQUIRE(pair.until([&] { return computed.value() == 1; }));
  pair.constraint = {};
  REQUIRE(pair.reserve("plain", small_prompt(20, 2), 7));
  CHECK(pair.until([&] { return !pair.answers["plain"].finish.empty(); }));
  CHECK(pair.answers["guided"].finish == "");
  CHECK_FALSE(gate.opened);
  gate.open();
  REQUIRE(pair.until([&] { return !pair.answers["guided"].finish.empty(); }));
  CHECK(text_of(engine, pair.answers["guided"]) == "abababa");
  CHECK(pair.comes_to_rest());
}
