// tokenize FILE: the tokens of each line of the standard input, a text as JSON, one line each: as a
// prompt, as a prompt without what is put around it, as a template's text, and the text of the last
// again. FILE: a tokenizer.json, a .gguf or a folder. tests/nightly/tokenizer_compare.py compares
// them with the `tokenizers` package's.
#include <cstdio>
#include <iostream>
#include <string>

#include "base/json.h"
#include "model/files/gguf.h"
#include "model/files/mapped_file.h"
#include "model/text/gguf_tokenizer.h"
#include "model/text/tokenizer.h"
#include "model/tokens/text.h"

namespace {

using mc::model::Tokenizer;

mc::Result<Tokenizer> open(const std::string& path) {
  if (path.ends_with(".json")) {
    MC_TRY(const mc::Json file, mc::read_json_file(path));
    return Tokenizer::hugging_face(file);
  }
  if (!path.ends_with(".gguf")) return Tokenizer::open(path, UINT32_MAX);
  MC_TRY(const auto file, mc::model::MappedFile::open(path));
  MC_TRY(const auto gguf, mc::model::parse_gguf(file.bytes()));
  return mc::model::gguf_tokenizer(gguf);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: tokenize FILE < TEXTS\n", stderr);
    return 2;
  }
  const auto tokenizer = open(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "tokenize: %s: %s\n", argv[1], tokenizer.error().what.c_str());
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = mc::parse_json(line);
    if (!json || !json->is_string()) {
      std::fputs("tokenize: a line is no text\n", stderr);
      return 1;
    }
    const std::string& text = json->get_ref<const std::string&>();
    const auto marked = tokenizer->encode_marked(text);
    const mc::Json out = {{"prompt", tokenizer->encode(text)},
                          {"plain", tokenizer->encode(text, false)},
                          {"marked", marked},
                          {"text", tokenizer->decode(marked)}};
    std::puts(mc::dump_json(out).c_str());
  }
}
