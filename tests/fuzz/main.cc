// All fuzz targets in one program. With libFuzzer (scripts/fuzz) MC_FUZZ_TARGET names the one to
// fuzz, and MC_FUZZ_SEEDS a folder for the inputs that the program makes itself. Without, it
// replays kept inputs and seeded changes of them, and an input that takes a second of CPU time, or
// ten under a sanitizer, ends it:
//
//   fuzz NAME CORPUS CHANGES [FILE...]    files: more inputs, beside those of the folder
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/result.h"
#include "tests/fuzz/replay.h"
#include "tests/fuzz/target.h"

namespace mc::fuzz {

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"frames", run_frames},
      {.name = "topology", .run = run_topology, .words = words_topology},
      {.name = "front", .run = run_front, .words = words_front},
      {.name = "messages", .run = run_messages, .seeds = seeds_messages},
      {"values", run_values, [] { return std::vector<std::string_view>{}; }, seeds_events},
      {.name = "events", .run = run_events, .seeds = seeds_events},
      {.name = "etcd", .run = run_etcd, .words = words_etcd},
      {.name = "traces", .run = run_traces, .words = words_traces},
      {.name = "disk", .run = run_disk, .seeds = seeds_disk},
      {.name = "index", .run = run_index, .seeds = seeds_index},
      {.name = "tokenizer", .run = run_tokenizer, .words = words_tokenizer},
      {.name = "sentencepiece", .run = run_sentencepiece, .seeds = seeds_sentencepiece},
      {.name = "gguf", .run = run_gguf, .seeds = seeds_gguf},
      {.name = "safetensors", .run = run_safetensors, .seeds = seeds_safetensors},
      {.name = "template", .run = run_template, .words = words_template, .seeds = seeds_template},
      {.name = "grammar", .run = run_grammar, .words = words_grammar, .seeds = seeds_grammar}};
  return all;
}

namespace {
const Target* find_target(const char* name) {
  for (const Target& t : targets())
    if (name != nullptr && std::strcmp(t.name, name) == 0) return &t;
  std::fprintf(stderr, "fuzz: no target '%s'\n", name == nullptr ? "" : name);
  return nullptr;
}
}  // namespace

}  // namespace mc::fuzz

#ifdef MC_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const mc::fuzz::Target* const target =
      mc::fuzz::find_target(std::getenv("MC_FUZZ_TARGET"));
  if (target == nullptr) std::exit(2);
  static const bool seeded = [] {
    const char* const folder = std::getenv("MC_FUZZ_SEEDS");
    size_t n = 0;
    for (const std::string& seed : target->seeds()) {
      if (folder != nullptr) std::ofstream(folder + std::string("/") + std::to_string(n++)) << seed;
      target->run(seed);
    }
    return true;
  }();
  (void)seeded;
  target->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
#else
int main(int argc, char** argv) {
  const mc::fuzz::Target* const target = argc < 4 ? nullptr : mc::fuzz::find_target(argv[1]);
  return target == nullptr ? 2 : mc::fuzz::replay(*target, argc, argv);
}
#endif
