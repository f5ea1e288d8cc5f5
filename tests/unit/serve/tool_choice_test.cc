// Calls that a request asks for, by a small model: of random weights, it would never call a tool of
// itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "pair.h"
#include "serve/answers/text_stream.h"
#include "serve/answers/tool_stream.h"
#include "serve/request/openai.h"
#include "small_engine.h"

using namespace mc;
using namespace mc::serve;

namespace tool_choice_test {
namespace {

constexpr const char* kTemplate =
    "{%- if tools -%}{{ tools }}{%- endif -%}{%- for m in messages -%}{{ m.content }}{% endfor -%}";
const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{)"
    R"("type":"object",)"
    R"("properties":{"town":{"enum":["Oslo","Bergen"]},"days":{"type":"integer","minimum":1,)"
    R"("maximum":9}},"required":["town","days"]}}},)"
    R"({"type":"function","function":{"name":"stop"}}])";

Constraint constraint_of(model::ToolCallFormat format, const model::Tokenizer& tokenizer,
                         const std::string& members) {
  model::ChatFormat chat = model::chat_format(kTemplate, "", "", "");
  REQUIRE(chat.program);
  chat.calls = format;
  const ApiLimits limits = limits_of(tokenizer, "tiny", 4096, tokenizer.vocab(), chat);
  const auto r = parse_completion(R"({"model":"tiny","messages":[{"role":"user","content":"a"}],)" +
                                      kTools + "," + members + "}",
                                  true, limits);
  REQUIRE_MESSAGE(r, r.error().message);
  return r->constraint;
}

}  // namespace

TEST_CASE("calls that have to be made come from a small model in each format") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  PairOptions options;
  options.prefill_engine = options.decode_engine = &engine;
  options.tokenizer = []() -> Result<model::Tokenizer> {
    return model::Tokenizer::bytes_only(small().vocab);
  };
  Pair pair(loop, options);
  pair.temperature = 2;
  const auto tokenizer = model::Tokenizer::bytes_only(small().vocab);
  using enum model::ToolCallFormat;
  for (const auto format : {kHermes, kLlama3, kMistral}) {
    pair.constraint =
        constraint_of(format, tokenizer,
                      R"("tool_choice":{"type":"function","function":{"name":"weather"}},)"
                      R"("parallel_tool_calls":false)");
    for (uint64_t seed = 0; seed < 3; ++seed) {
      pair.seed = seed;
      const std::string id = std::string(name(format)) + std::to_string(seed);
      const auto prompt = small_prompt(20, 1);
      const auto target = pair.reserve(id, prompt, 300);
      REQUIRE_MESSAGE(target, target.error().what);
      const auto tx = pair.allocate(id, prompt, *target);
      REQUIRE(tx);
      REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx, {}}, 20s * kSlow));
      REQUIRE(pair.until([&] { return !pair.answers[id].finish.empty(); }));
      REQUIRE(pair.call(*pair.to_p, TxCommit{tx->tx, {}}));
      std::string text;
      for (const int32_t t : pair.answers[id].tokens)
        if (!engine.ends_answer(t)) text += static_cast<char>(t);
      CAPTURE(text);
      CHECK(pair.answers[id].finish == "stop");
      ToolUse use;
      use.names = {"weather"};
      ToolStream stream(format, use, 1);
      std::vector<ToolPiece> pieces;
      stream.push(text, pieces);
      stream.flush(pieces);
      CHECK(stream.calls() == 1);
      std::string arguments;
      for (const ToolPiece& p : pieces) {
        CHECK(p.kind != ToolPiece::Kind::kText);
        if (p.kind == ToolPiece::Kind::kArguments) arguments += p.text;
      }
      const auto read = parse_json(arguments);
      REQUIRE_MESSAGE(read, arguments);
      CHECK(((*read)["town"] == "Oslo" || (*read)["town"] == "Bergen"));
      CHECK((*read)["days"] >= 1);
      CHECK((*read)["days"] <= 9);
    }
  }
  CHECK(pair.comes_to_rest());
}

TEST_CASE("where the vocabulary has the mark of calls as a token, it is that and not its letters") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine engine = make(1, "auto");
  constexpr int32_t kMark = 3;
  const auto open = []() -> Result<model::Tokenizer> {
    std::vector<model::Tokenizer::Piece> pieces = {{"<unk>", 0, 2},        {"<s>", 0, 3},
                                                   {"</s>", 0, 3},         {"[TOOL_CALLS]", 0, 3},
                                                   {"\xe2\x96\x81", 0, 1}, {"<end>", 0, 3}};
    for (char c = '!'; c <= '~'; ++c) pieces.push_back({std::string(1, c), 0, 1});
    for (const char* more : {"[T", "OOL", "_CALLS", "]\xe2\x96\x81["})
      pieces.push_back({more, 0, 1});
    while (pieces.size() < small().vocab)
      pieces.push_back({"word" + std::to_string(pieces.size()), 0, 1});
    return model::Tokenizer::scored_pieces(std::move(pieces), 1, false);
  };
  PairOptions options;
  options.prefill_engine = options.decode_engine = &engine;
  options.tokenizer = open;
  Pair pair(loop, options);
  pair.temperature = 2;
  const auto tokenizer = open();
  REQUIRE(tokenizer);
  REQUIRE(tokenizer->special(kMark));
  const std::string calls = R"("tool_choice":"required","parallel_tool_calls":false)";
  using enum model::ToolCallFormat;
  pair.constraint = constraint_of(kMistral, *tokenizer, calls);
  CHECK(pair.constraint.text.find("<[3]>") != std::string::npos);
  CHECK(pair.constraint.text.find("TOOL_CALLS") == std::string::npos);
  // Its own format has no such mark.
  CHECK(constraint_of(kHermes, *tokenizer, calls).text.find("<[") == std::string::npos);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    pair.seed = seed;
    const std::string id = std::to_string(seed);
    const auto prompt = small_prompt(20, 1);
    const auto target = pair.reserve(id, prompt, 300);
    REQUIRE_MESSAGE(target, target.error().what);
    const auto tx = pair.allocate(id, prompt, *target);
    REQUIRE(tx);
    REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx, {}}, 20s * kSlow));
    REQUIRE(pair.until([&] { return !pair.answers[id].finish.empty(); }));
    REQUIRE(pair.call(*pair.to_p, TxCommit{tx->tx, {}}));
    const std::vector<int32_t>& tokens = pair.answers[id].tokens;
    CHECK(pair.answers[id].error == "");
    CHECK(pair.answers[id].finish == "stop");
    REQUIRE(!tokens.empty());
    CHECK(tokens[0] == kMark);
    CHECK(std::count(tokens.begin(), tokens.end(), kMark) == 1);
    TextStream text(*tokenizer, {}, false, model::tool_call_marks(kMistral));
    ToolUse use;
    use.names = {"weather", "stop"};
    ToolStream stream(kMistral, use, 1);
    std::vector<ToolPiece> pieces;
    for (const int32_t t : tokens)
      if (!engine.ends_answer(t)) stream.push(text.push(t), pieces);
    stream.push(text.flush(), pieces);
    stream.flush(pieces);
    CHECK(stream.calls() == 1);
    for (const ToolPiece& p : pieces) CHECK(p.kind != ToolPiece::Kind::kText);
  }
  CHECK(pair.comes_to_rest());
}

}  // namespace tool_choice_test
