// tokenize FILE [--rate SECONDS]: the tokens of each line of the standard input, a text as JSON,
// one line each: as a prompt, as one without what is put around it, as a template's text, and the
// text of the last again. FILE: a tokenizer.json, a .gguf or a folder. With --rate it prints the
// bytes of the texts that a second of this thread's CPU encodes, and how many tokens they are.
// tests/nightly/tokenizer_compare.py and bench/tokenizer_rate.py compare both with the `tokenizers`
// package.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

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

double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

void print_rate(const Tokenizer& tokenizer, const std::vector<std::string>& texts, double seconds) {
  size_t bytes = 0, tokens = 0, once = 0;
  double begin = 0, now = 0;
  for (int round = 0; round < 2 || now - begin < seconds; ++round) {
    if (round == 1) {  // the first is not counted
      begin = thread_seconds();
      once = tokens;
      bytes = 0;
    }
    for (const std::string& text : texts) {
      tokens += tokenizer.encode(text, false).size();
      bytes += text.size();
    }
    now = thread_seconds();
  }
  const mc::Json out = {{"bytes_per_second", static_cast<double>(bytes) / (now - begin)},
                        {"tokens", once}};
  std::puts(mc::dump_json(out).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const bool rate = argc == 4 && std::string_view(argv[2]) == "--rate";
  if (argc != 2 && !rate) {
    std::fputs("usage: tokenize FILE [--rate SECONDS] < TEXTS\n", stderr);
    return 2;
  }
  const auto tokenizer = open(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "tokenize: %s: %s\n", argv[1], tokenizer.error().what.c_str());
    return 1;
  }
  std::vector<std::string> texts;
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = mc::parse_json(line);
    if (!json || !json->is_string()) {
      std::fputs("tokenize: a line is no text\n", stderr);
      return 1;
    }
    texts.push_back(json->get<std::string>());
  }
  if (rate) {
    print_rate(*tokenizer, texts, std::atof(argv[3]));
    return 0;
  }
  for (const std::string& text : texts) {
    const auto marked = tokenizer->encode_marked(text);
    const mc::Json out = {{"prompt", tokenizer->encode(text)},
                          {"plain", tokenizer->encode(text, false)},
                          {"marked", marked},
                          {"text", tokenizer->decode(marked)}};
    std::puts(mc::dump_json(out).c_str());
  }
}
