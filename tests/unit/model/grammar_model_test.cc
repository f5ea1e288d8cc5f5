// The small real model, kept to random schemas: what it says fits them.
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "model/forward/model.h"
#include "model/forward/sampler.h"
#include "model/grammar/compile.h"
#include "model/grammar/masks.h"
#include "random_schema.h"
#include "run.h"
#include "schema_check.h"
#include "shared.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::model;

TEST_CASE("200 random schemas: the small model gives valid values") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  const auto files = open_model(shared + "/stories260K/hf-f32");
  REQUIRE_MESSAGE(files.has_value(), files.error().what);
  ThreadPool threads(1);
  auto weights = load(*files, threads);
  REQUIRE(weights);
  const Transformer t(files->config, std::move(*weights), {DType::kF32, 16}, *kernels_named("auto"),
                      threads);
  const Tokenizer& tokenizer = files->tokenizer;
  std::vector<std::string_view> tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab()); ++id)
    tokens.push_back(tokenizer.bytes(id));
  const auto trie = std::make_shared<const grammar::TokenTrie>(tokens);
  const std::vector<int32_t> prompt = tokenizer.encode("Once upon a time");
  REQUIRE(!files->config.eos.empty());
  const int32_t eos = files->config.eos[0];
  Random random(5);
  size_t whole = 0;
  for (int run = 0; whole < fewer(200); ++run) {
    REQUIRE(run < 800);
    const Json schema = test::RandomSchema(random).draw();
    CAPTURE(dump_json(schema));
    const auto automaton = grammar::compile(grammar::Form::kJsonSchema, dump_json(schema));
    REQUIRE(automaton);
    grammar::Masks masks(*automaton, trie);
    grammar::Matcher matcher(*automaton);
    grammar::TokenSet allowed(tokens.size());
    test::Sequence sequence(t, 512);
    std::vector<float> logits = sequence.add(prompt, 100);
    std::string text;
    for (uint64_t step = prompt.size(); !matcher.over() && step < 500; ++step) {
      REQUIRE(masks.after(matcher, allowed));
      REQUIRE((matcher.complete() || !allowed.none()));  // byte tokens write what has no other
      std::span<float> row = std::span(logits).last(tokens.size());
      for (size_t id = 0; id < row.size(); ++id) {
        const bool ends = matcher.complete() && static_cast<int32_t>(id) == eos;
        if (!allowed.has(id) && !ends) row[id] = -INFINITY;
        // It tells stories: a string would not end.
        if (step > 60 && tokens[id].starts_with('"')) row[id] += static_cast<float>(step) / 20;
      }
      const int32_t token = sample(row, {.temperature = 1, .seed = 9, .position = step});
      if (tokens[static_cast<size_t>(token)].empty()) break;
      text += tokens[static_cast<size_t>(token)];
      REQUIRE(*matcher.take(tokens[static_cast<size_t>(token)]));
      logits = sequence.add({token}, 1);
    }
    CAPTURE(text);
    if (!matcher.complete()) continue;  // no room for all of it
    const Json value = test::parse_value(text);
    REQUIRE(!value.is_discarded());
    CHECK(test::SchemaCheck(schema).fits(value));
    ++whole;
  }
}
