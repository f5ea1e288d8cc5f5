// The small real model on a device against what an independent engine said.
#include "model/forward/model.h"
#include "small_model.h"
#include "tests/unit/model/shared.h"

using namespace mc;
using namespace mc::gpu;
using device::must;

namespace {

// Each prompt at once, then a token a step; `most` prompts and the first tokens of each, for the
// host is slow.
void check_greedy(const std::string& folder, const Json& file, size_t most) {
  const model::ModelFiles files = must(model::open_model(folder));
  const model::KvLayout layout{model::DType::kF32, 16};
  model::ThreadPool threads(1);
  const auto t = must(Transformer::open(device::open_kind("stand-in"), files.config,
                                        must(model::open_sources(files)), files.weight_type(),
                                        layout, threads));
  REQUIRE(file["cases"].size() > 10);
  for (size_t i = 0; i < most; ++i) {
    const Json& c = file["cases"][i];
    const auto prompt = c["prompt_tokens"].get<std::vector<int32_t>>();
    auto want = c["generated_tokens"].get<std::vector<int32_t>>();
    want.resize(std::min<size_t>(want.size(), 40));
    const Blocks kv(files.config, layout, prompt.size() + want.size());
    const model::Slice all = kv.slice(0, prompt.size());
    Pass pass = must(t->begin(prompt, {&all, 1}));
    for (uint32_t l = 0; l < files.config.layers; ++l)
      must(t->layer(pass, l, l + 1 == files.config.layers));
    std::vector<int32_t> got;
    const Choice greedy;
    for (int32_t last = prompt.back(); got.size() < want.size(); last = got.back()) {
      const size_t at = prompt.size() - 1 + got.size();
      const model::Slice slice = kv.slice(at, at + 1);
      got.push_back(must(t->step({&last, 1}, {&slice, 1}, {&greedy, 1}))[0]);
    }
    CAPTURE(c["name"].get<std::string>());
    CHECK(got == want);
  }
}

}  // namespace

TEST_CASE("oracle: greedy tokens of real weights are exact on a device, f32 and bf16 weights") {
  const std::string shared = test::shared_models();
  if (shared.empty()) return;
  const std::string oracle = shared + "/oracle/stories260K";
  check_greedy(shared + "/stories260K/hf-f32", test::json_at(oracle + "/greedy_f32.json"), 2);
  check_greedy(shared + "/stories260K/hf-bf16", test::json_at(oracle + "/greedy_bf16w.json"), 1);
}
