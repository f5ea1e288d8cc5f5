// Chats by a model's own template: what is written, and which tokens it becomes.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "files.h"
#include "model/files/gguf.h"
#include "model/text/chat.h"
#include "model/text/gguf_tokenizer.h"

using namespace mc;
using namespace mc::model;

namespace chat_template_test {
namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% endif %}";

Json tokenizer_json() {
  Json file = {{"model", {{"type", "BPE"}, {"merges", Json::array()}}},
               {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
  Json vocab = Json::object(), added = Json::array();
  for (char c = '!'; c <= '~'; ++c) vocab[std::string(1, c)] = vocab.size();
  vocab["\u0120"] = vocab.size();
  vocab["\u010A"] = vocab.size();
  for (const char* mark : {"<s>", "<|im_start|>", "<|im_end|>"})
    added.push_back({{"id", vocab.size() + added.size()}, {"content", mark}, {"special", true}});
  added.push_back({{"id", vocab.size() + added.size()},
                   {"content", "<|end|>"},
                   {"special", true},
                   {"rstrip", true}});
  file["model"]["vocab"] = vocab;
  file["added_tokens"] = added;
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}}};
  return file;
}

Tokenizer tokenizer() {
  auto t = Tokenizer::hugging_face(tokenizer_json());
  REQUIRE_MESSAGE(t.has_value(), t.error().what);
  return std::move(*t);
}

std::vector<int32_t> ids(const Tokenizer& t, const std::vector<std::string>& pieces) {
  std::vector<int32_t> out;
  for (const std::string& piece : pieces) out.push_back(t.find(piece).value());
  return out;
}

}  // namespace

TEST_CASE("chat: a template's text becomes tokens with its marks, and begins once") {
  const Tokenizer t = tokenizer();
  const ChatFormat format = chat_format(kTemplate, "", "<s>", "<|im_end|>");
  REQUIRE(format.program);
  CHECK(std::string(name(format)) == "jinja");
  const Json variables = {{"messages", {{{"role", "u"}, {"content", "hi"}}}},
                          {"add_generation_prompt", true}};
  const auto prompt = chat_prompt(format, t, variables, {});
  REQUIRE_MESSAGE(prompt.has_value(), prompt.error().what);
  CHECK(prompt->tokens == ids(t, {"<s>", "<|im_start|>", "u", "\u010A", "h", "i", "<|im_end|>",
                                  "\u010A", "<|im_start|>", "a"}));
  CHECK(prompt->end == t.find("<|im_end|>"));
  // Other texts still spell no special token.
  CHECK(t.encode("<s>", false).size() == 3);
  CHECK(t.encode_marked("a<|end|> \n b") == ids(t, {"a", "<|end|>", "b"}));
}

TEST_CASE("chat: a chat with tools has a template of its own where the model names one") {
  const Tokenizer t = tokenizer();
  const ChatFormat format = chat_format("a<|im_end|>", "b{{ tools[0].n }}", "", "");
  const auto with = chat_prompt(format, t, {{"tools", {{{"n", 1}}}}}, {});
  const auto without = chat_prompt(format, t, {{"tools", nullptr}}, {});
  REQUIRE(with.has_value());
  REQUIRE(without.has_value());
  CHECK(with->tokens == ids(t, {"b", "1"}));
  CHECK(without->tokens == ids(t, {"a", "<|im_end|>"}));
}

TEST_CASE("chat: a template that cannot be parsed falls back on its marks") {
  const ChatFormat format = chat_format("{% include 'x' %}<|im_start|>", "", "", "");
  CHECK_FALSE(format.program);
  CHECK(format.kind == ChatTemplate::kChatMl);
  CHECK(format.problem.find("include") != std::string::npos);
  CHECK(chat_format("", "", "", "").kind == ChatTemplate::kPlain);
}

TEST_CASE("chat: the template of a GGUF file, with the texts of its tokens") {
  Gguf g;
  g.metadata["tokenizer.chat_template"] = std::string("{{ bos_token }}x{{ eos_token }}");
  g.metadata["tokenizer.ggml.tokens"] = std::vector<std::string>{"<b>", "<e>"};
  g.metadata["tokenizer.ggml.bos_token_id"] = int64_t{0};
  g.metadata["tokenizer.ggml.eos_token_id"] = int64_t{1};
  const ChatFormat format = gguf_chat(g);
  REQUIRE(format.program);
  CHECK(format.program->render(Json::object(), {}) == "x");
  CHECK(format.bos == "<b>");
  CHECK(format.eos == "<e>");
  g.metadata["tokenizer.ggml.eos_token_id"] = int64_t{7};
  CHECK(gguf_chat(g).eos.empty());
}

}  // namespace chat_template_test
