// Log-probabilities as clients of the OpenAI API read them.
#include "serve/answers/answer_logprobs.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "serve/answers/openai_writer.h"

using namespace mc;
using namespace mc::serve;

namespace {

// "a" is 0, a word 1, an end of text 2, the byte B 4 + B.
model::Tokenizer pieces() {
  std::vector<model::Tokenizer::Piece> all = {
      {"a", -1, 1}, {"n\xC3\xA9", -2, 1}, {"</s>", 0, 3}, {"<unk>", 0, 2}};
  for (unsigned b = 0; b < 256; ++b) all.push_back({strf("<0x%02X>", b), 0, 6});
  auto made = model::Tokenizer::scored_pieces(std::move(all), -1, false);
  REQUIRE_MESSAGE(made, made.error().what);
  return std::move(*made);
}
constexpr int32_t kHalf = 4 + 0xC3;  // of a letter

}  // namespace

TEST_CASE("F89: a chat's logprobs have text, bytes and the likeliest of each token") {
  const auto tokenizer = pieces();
  AnswerLogprobs l(tokenizer, {.chat = true});
  l.add(0, {-0.5, {0, 1}, {-0.5, -2}});
  l.add(kHalf, {-9999, {}, {}});
  const Json said = l.take();
  CHECK(said["refusal"].is_null());
  REQUIRE(said["content"].size() == 2);
  const Json& first = said["content"][0];
  CHECK(first["token"] == "a");
  CHECK(first["logprob"] == -0.5);
  CHECK(first["bytes"] == Json::array({97}));
  REQUIRE(first["top_logprobs"].size() == 2);
  CHECK(first["top_logprobs"][0]["token"] == "a");
  CHECK(first["top_logprobs"][1]["token"] == "n\xC3\xA9");
  CHECK(first["top_logprobs"][1]["bytes"] == Json::array({110, 0xC3, 0xA9}));
  CHECK(first["top_logprobs"][1]["logprob"] == -2);
  CHECK(said["content"][1]["token"] == "bytes:\\xc3");
  CHECK(said["content"][1]["bytes"] == Json::array({0xC3}));
  CHECK(said["content"][1]["top_logprobs"].empty());
  l.add(2, {-1, {}, {}});
  const Json end = l.take();
  REQUIRE(end["content"].size() == 1);  // what was taken is gone
  CHECK(end["content"][0]["token"] == "</s>");
}

TEST_CASE("F89: a completion's logprobs have offsets of characters, and each token itself") {
  const auto tokenizer = pieces();
  AnswerLogprobs l(tokenizer, {}, 10);
  l.add(1, {-3, {0}, {-0.1}});
  l.add(0, {-0.1, {0}, {-0.1}});
  const Json said = l.take();
  CHECK(said["tokens"] == Json::array({"n\xC3\xA9", "a"}));
  CHECK(said["token_logprobs"] == Json::array({-3.0, -0.1}));
  CHECK(said["text_offset"] == Json::array({10, 12}));
  CHECK(said["top_logprobs"][0] == Json({{"a", -0.1}, {"n\xC3\xA9", -3.0}}));
  CHECK(said["top_logprobs"][1] == Json({{"a", -0.1}}));
  l.add(0, {-0.2, {}, {}});
  CHECK(l.take()["text_offset"] == Json::array({13}));
}

TEST_CASE("F89: choices of an answer have their index, and each of a chat its role once") {
  const Json logprobs = {{"content", Json::array()}};
  OpenAiWriter w("1", "tiny", 5, true, false, false);
  const auto choice = [&](const AnswerPart& part) {
    return (*parse_json(w.chunk(part, {}).substr(6)))["choices"][0];
  };
  CHECK(choice({1, "x"})["index"] == 1);
  const Json first = choice({0, "y", "", &logprobs});
  CHECK(first["index"] == 0);
  CHECK(first["delta"]["role"] == "assistant");
  CHECK(first["logprobs"] == logprobs);
  CHECK(!choice({1, "z"})["delta"].contains("role"));
  const std::vector<AnswerPart> parts = {{0, "a", "stop"}, {1, "b", "length", &logprobs}};
  const auto whole = *parse_json(w.whole(parts, {}, Json()));
  REQUIRE(whole["choices"].size() == 2);
  CHECK(whole["choices"][0]["message"]["content"] == "a");
  CHECK(whole["choices"][0]["logprobs"].is_null());
  CHECK(whole["choices"][1]["index"] == 1);
  CHECK(whole["choices"][1]["finish_reason"] == "length");
  CHECK(whole["choices"][1]["logprobs"] == logprobs);
}

TEST_CASE("tokens are named by their numbers where a client asked for these") {
  const auto tokenizer = pieces();
  AnswerLogprobs chat(tokenizer, {.chat = true, .token_ids = true});
  chat.add(0, {-0.5, {1}, {-2}});
  const Json said = chat.take();
  CHECK(said["content"][0]["token"] == "token_id:0");
  CHECK(said["content"][0]["bytes"] == Json::array({97}));
  CHECK(said["content"][0]["top_logprobs"][0]["token"] == "token_id:1");
  AnswerLogprobs completion(tokenizer, {.token_ids = true});
  completion.add(kHalf, {-0.5, {1}, {-2}});
  const Json other = completion.take();
  CHECK(other["tokens"] == Json::array({"token_id:199"}));
  CHECK(other["top_logprobs"][0]["token_id:199"] == -0.5);
  CHECK(other["top_logprobs"][0]["token_id:1"] == -2);
}
