// Files of models, fuzzed: a file is read, or refused with a reason; a tokenizer that was read
// writes text and reads it back without an index outside its vocabulary.
#include <cstring>

#include "base/json.h"
#include "model/files/config.h"
#include "model/files/gguf.h"
#include "model/files/tensors.h"
#include "model/template/jinja_template.h"
#include "model/text/chat.h"
#include "model/text/gguf_tokenizer.h"
#include "model/text/tokenizer.h"
#include "tests/fuzz/target.h"

namespace mc::fuzz {
namespace {

template <class T>
bool good(const Result<T>& outcome) {
  MC_CHECK(outcome || !outcome.error().what.empty());
  return outcome.has_value();
}

void use(const model::Tokenizer& tokenizer) {
  for (const std::string_view text :
       {"Hello, world\n", " \xe2\x96\x81\xf0\x9f\x99\x82", "\xff\xfe 1234"}) {
    const std::vector<int32_t> tokens = tokenizer.encode(text);
    for (const int32_t token : tokens)
      MC_CHECK(token >= 0 && token < static_cast<int32_t>(tokenizer.vocab()));
    (void)tokenizer.decode(tokens);
  }
  for (const int32_t token : {-1, 0, INT32_MAX}) (void)tokenizer.bytes(token);
  const model::ChatMessage asked{"user", "Hello"};
  (void)model::chat_prompt(model::ChatTemplate::kChatMl, tokenizer, {&asked, 1});
}

void use(const model::Tensors& tensors, std::string_view file) {
  const auto* const begin = reinterpret_cast<const std::byte*>(file.data());
  for (const auto& [name, tensor] : tensors) {
    MC_CHECK(tensor.bytes.empty() ||
             (tensor.bytes.data() >= begin &&
              tensor.bytes.data() + tensor.bytes.size() <= begin + file.size()));
    if (!tensor.readable() || tensor.shape.empty() || tensor.bytes.empty()) continue;
    const uint64_t row = std::min<uint64_t>(tensor.shape.back(), 1 << 16);
    if (tensor.blocks != nullptr && row % tensor.blocks->elements != 0) continue;
    std::vector<float> values(row);  // the last row, or its beginning
    tensor.read(*model::element_count(tensor.shape) - tensor.shape.back(), row, values.data());
  }
}

std::span<const std::byte> bytes_of(std::string_view input) {
  return std::as_bytes(std::span(input.data(), input.size()));
}

template <class T>
void put(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
void put_text(std::string& out, std::string_view text) {
  put(out, uint64_t{text.size()});
  out += text;
}
void put_key(std::string& out, std::string_view key, uint32_t type) {
  put_text(out, key);
  put(out, type);
}

}  // namespace

void run_tokenizer(std::string_view input) {
  const auto json = parse_json(input, kJsonFile);
  if (!good(json)) return;
  const auto tokenizer = model::Tokenizer::hugging_face(*json);
  if (good(tokenizer)) use(*tokenizer);
  auto config = model::parse_config(*json);
  if (good(config)) {
    (void)good(model::parse_generation_config(*json, *config));
    (void)model::spec_of(*config, model::DType::kF32);
  }
}
std::vector<std::string_view> words_tokenizer() {
  return {"\"<0x-1>\":1",
          "\"<0x41>\":1",
          "\"byte_fallback\":true",
          "\"fuse_unk\":true",
          "\"ignore_merges\":true",
          "\"unk_token\":\"a\"",
          "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}",
          "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"behavior\":\"Isolated\"}",
          "{\"type\":\"Digits\",\"individual_digits\":true}",
          "{\"type\":\"NFC\"}",
          "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\"}",
          "\"a b\"",
          "[\"a\",\"b\"]",
          "4294967295",
          "-1",
          "2147483647",
          "1e308",
          "null",
          "\"\"",
          "{}",
          "[]"};
}

void run_sentencepiece(std::string_view input) {
  const auto tokenizer = model::Tokenizer::sentencepiece(input);
  if (good(tokenizer)) use(*tokenizer);
}
std::vector<std::string> seeds_sentencepiece() {
  std::string out;  // field 1: a piece of text (1), score (2) and kind (3)
  const auto piece = [&out](std::string_view text, char kind) {
    std::string p = "\x0a";
    p += static_cast<char>(text.size());
    p += text;
    p += '\x15';
    put(p, -1.F);
    p += '\x18';
    p += kind;
    out += '\x0a';
    out += static_cast<char>(p.size());
    out += p;
  };
  piece("<unk>", 2);
  piece("<s>", 3);
  piece("</s>", 3);
  piece("<0x41>", 6);
  for (const char* text : {"\xe2\x96\x81", "H", "e", "l", "o", "He", "ll", "Hello"}) piece(text, 1);
  out += std::string("\x12\2\x18\2", 4);  // trained for BPE
  return {out};
}

void run_gguf(std::string_view input) {
  const auto file = model::parse_gguf(bytes_of(input));
  if (!good(file)) return;
  use(file->tensors, input);
  (void)good(model::gguf_config(*file));
  const auto tokenizer = model::gguf_tokenizer(*file);
  if (good(tokenizer)) use(*tokenizer);
  (void)model::gguf_chat(*file);
}
std::vector<std::string> seeds_gguf() {
  std::string out = "GGUF";
  put(out, uint32_t{3});
  put(out, uint64_t{3});  // tensors
  put(out, uint64_t{6});  // values
  put_key(out, "general.architecture", 8);
  put_text(out, "llama");
  put_key(out, "llama.block_count", 4);
  put(out, uint32_t{1});
  put_key(out, "llama.rope.freq_base", 6);
  put(out, 10000.F);
  put_key(out, "tokenizer.ggml.model", 8);
  put_text(out, "llama");
  put_key(out, "tokenizer.ggml.tokens", 9);
  put(out, uint32_t{8});
  put(out, uint64_t{4});
  for (const char* text : {"<unk>", "<s>", "</s>", "a"}) put_text(out, text);
  put_key(out, "tokenizer.ggml.token_type", 9);
  put(out, uint32_t{5});
  put(out, uint64_t{4});
  for (const int32_t kind : {2, 3, 3, 1}) put(out, kind);
  put_text(out, "token_embd.weight");
  put(out, uint32_t{2});
  put(out, uint64_t{4});
  put(out, uint64_t{2});
  put(out, uint32_t{0});
  put(out, uint64_t{0});
  for (const auto& [type, offset] : {std::pair{3u, 32u}, {12u, 96u}}) {  // Q4_1, Q4_K
    put_text(out, type == 3 ? "a" : "b");
    put(out, uint32_t{2});
    put(out, uint64_t{type == 3 ? 32u : 256u});
    put(out, uint64_t{2});
    put(out, type);
    put(out, uint64_t{offset});
  }
  out.resize((out.size() + 31) / 32 * 32);
  out.append(96 + 2 * 144, '\1');
  return {out};
}

void run_safetensors(std::string_view input) {
  const auto tensors = model::parse_safetensors(bytes_of(input));
  if (good(tensors)) use(*tensors, input);
}
std::vector<std::string> seeds_safetensors() {
  const std::string head =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}})";
  std::string out;
  put(out, uint64_t{head.size()});
  out += head;
  out.append(24, '\1');
  return {out};
}

// Whatever a template says, it ends soon, and what it writes is bounded.
void run_template(std::string_view input) {
  const auto parsed = model::JinjaTemplate::parse(input, "template");
  if (!good(parsed)) return;
  const Json messages = {{{"role", "user"}, {"content", "Hi \xf0\x9f\x99\x82"}},
                         {{"role", "assistant"}, {"content", nullptr}}};
  const model::TemplateLimits limits{
      .steps = 20'000, .bytes = 1u << 20, .output = 1u << 16, .depth = 200};
  std::tm now{};
  now.tm_mday = 1;
  const auto text = parsed->render(
      {{"messages", messages}, {"tools", nullptr}, {"add_generation_prompt", true}}, now, limits);
  if (good(text)) MC_CHECK(text->size() <= limits.output);
  (void)parsed->reads_content_parts();
}
std::vector<std::string_view> words_template() {
  return {"{%",      "%}",     "{{",         "}}",       "{#",       "#}",      "-%}",
          "{%-",     " if ",   " elif ",     " else ",   " for ",    " in ",    " set ",
          " macro ", "endfor", "endif",      "endset",   "raw",      "endraw",  "messages",
          "loop",    "range(", "namespace(", "|tojson",  "|join",    "|map(",   "|list",
          "|length", " is ",   "defined",    "mapping",  ".items()", ".split(", "[::-1]",
          "[1:]",    " ~ ",    " ** ",       "//",       "'a'",      "9999999", "(((((((((((",
          "[[[[[[",  "a=",     "break",      "continue", "not "};
}
std::vector<std::string> seeds_template() {
  return {
      "{%- for m in messages if m.role %}{{ loop.index ~ m['role'] + '\n' + (m.content or '') | "
      "trim }}{%- else -%} none {% endfor %}",
      "{% macro f(x, n=3) %}{% if n > 0 %}{{ f(x * 2, n - 1) }}{% else %}{{ x }}{% endif %}"
      "{% endmacro %}{{ f('ab') }}{% set ns = namespace(a=[1, 2.5, {'k': none}]) %}"
      "{% set ns.b = ns.a[::-1] | tojson(indent=2) %}{{ ns.b }}",
      "{% set x %}a{% raw %}{{{% endraw %}{% endset %}{{ x.split('{')[0] | upper if x is string "
      "and 'a' in x else messages | map(attribute='role') | join(', ') }}{# end #}"};
}

}  // namespace mc::fuzz
