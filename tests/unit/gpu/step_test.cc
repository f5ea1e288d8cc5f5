// Decode steps: as graphs they say what their launches say one by one, and tokens are drawn on the
// device as the host draws them.
#include <cmath>
#include <limits>

#include "device/kernels/model_kernels.h"
#include "device/kernels_on_host.h"
#include "texts.h"

using namespace mc;
using namespace mc::gpu;
using device::must;
using model::DType;

namespace {

struct Said {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<std::byte>> kv;
  uint64_t graph_steps = 0;
  bool operator==(const Said& other) const { return tokens == other.tokens && kv == other.kv; }
};

// A few sequences, more and fewer of them in turn, for long enough that tables get wider.
Said speak(device::DevicePtr device, bool graphs, int steps = 60) {
  const model::KvLayout layout{DType::kF32, kTokens};
  model::ThreadPool threads(1);
  const auto t = must(Transformer::open(std::move(device), six_layers(),
                                        model::random_sources(six_layers(), 7), DType::kF32, layout,
                                        threads, {.graphs = graphs}));
  must(t->keep_blocks(64 * t->block_bytes()));
  std::vector<Text> texts;
  for (size_t i = 0; i < 3; ++i) texts.push_back(text(90 + 17 * i, 20 + i, 260));
  for (const Text& one : texts) prefill(*t, one);
  Said said;
  for (int i = 0; i < steps; ++i) {
    std::vector<Choice> choices(3);
    choices[1].draw = {.temperature = 1.2, .seed = 5, .position = static_cast<uint64_t>(i)};
    choices[2] = {{.temperature = 0.7, .top_k = 30, .top_p = 0.8, .seed = 1}, i % 3 == 0};
    if (i % 10 != 9) {
      said.tokens.push_back(step(*t, texts, true, choices));
      continue;
    }
    std::vector<Text> one;
    one.push_back(std::move(texts.back()));
    texts.pop_back();
    said.tokens.push_back(step(*t, one));
    texts.push_back(std::move(one.back()));
  }
  for (const Text& one : texts)
    said.kv.insert(said.kv.end(), one.blocks.memory.begin(), one.blocks.memory.end());
  said.graph_steps = t->traffic().graph_steps;
  return said;
}

struct Drawn {
  int32_t by_device, by_host;
};
// The row begins `pad` numbers after an address aligned for vectors.
Drawn draw(std::vector<float> logits, const model::Draw& d, std::vector<int32_t> ends, bool masked,
           size_t pad = 0) {
  const auto vocab = static_cast<uint32_t>(logits.size());
  std::vector<float> placed(pad);
  placed.insert(placed.end(), logits.begin(), logits.end());
  const mc_row row{0, 0, 0, masked ? 1u : 0u};
  const mc_draw drawing{d.temperature, d.top_p, d.bits(), d.top_k, 0};
  const float* const values = placed.data() + pad;
  const mc_row* const rows = &row;
  const mc_draw* const draws = &drawing;
  const int32_t* const end_list = ends.data();
  const auto count = static_cast<uint32_t>(ends.size());
  Drawn drawn{-1, -1};
  int32_t* const token = &drawn.by_device;
  const void* arguments[] = {&values, &rows, &draws, &end_list, &count, &token, &vocab};
  REQUIRE(device::run_kernel_on_host(MC_SAMPLE, {}, const_cast<void**>(arguments)));
  model::Draw host = d;
  if (masked) host.never = ends;
  drawn.by_host = model::sample(logits, host);
  return drawn;
}

}  // namespace

TEST_CASE("a step whose blocks are all resident is one launch, with the same tokens") {
  for (const std::string& kind : device::kinds()) {
    CAPTURE(kind);
    const Said plain = speak(device::open_kind(kind), false);
    const Said graphs = speak(device::open_kind(kind), true);
    CHECK(plain.graph_steps == 0);
    // Each number of rows and each width of the tables is seen once, then captured.
    CHECK(graphs.graph_steps >= 45);
    CHECK(graphs == plain);
  }
}

TEST_CASE("a graph is one launch; new KV goes to its blocks by a second") {
  const auto device = device::StandIn::make(device::kClock, {.bytes = 64u << 20});
  const model::KvLayout layout{DType::kF32, kTokens};
  Both both(device, layout, DType::kF32, six_layers());
  must(both.gpu->keep_blocks(16 * both.gpu->block_bytes()));
  std::vector<Text> texts;
  texts.push_back(text(20, 1, 60));
  for (const auto& block : texts[0].blocks.memory)
    must(both.gpu->pin({const_cast<std::byte*>(block.data()), block.size()}));
  prefill(*both.gpu, texts[0]);
  for (int i = 0; i < 5; ++i) {
    const auto before = device->counts();
    (void)step(*both.gpu, texts);
    const auto after = device->counts();
    CAPTURE(i);
    if (i > 0) CHECK(after.launches - before.launches == 2);
    if (i > 0) CHECK(after.copies == before.copies);
  }
}

TEST_CASE("without graphs, steps are launched kernel by kernel") {
  const Said want = speak(device::open_kind("stand-in"), false, 12);
  device::StandIn::Config config{.bytes = 256u << 20};
  config.graphs = false;
  CHECK(speak(device::StandIn::make(device::kClock, config), true, 12) == want);
  const auto old = [] {
    return must(device::open_cuda(device::fake::driver_without_graphs(), 0, "an image"));
  };
  CHECK(speak(old(), true, 12) == want);
  for (const char* call : {"capture_begin", "capture_end", "graph_instantiate"}) {
    CAPTURE(call);
    device::fake::Scene scene;
    scene.fails(call, device::driver::kNotSupported);
    const Said said = speak(device::open_kind("fake-cuda"), true, 12);
    CHECK(said == want);
    CHECK(said.graph_steps == 0);
    CHECK(scene.calls(call) == 1);  // it is not tried again
    CHECK(device::fake::state().clean());
  }
}

TEST_CASE("a failed graph returns its error, as launches do") {
  device::fake::Scene scene;
  const auto device = device::open_kind("fake-cuda");
  Both both(device, {DType::kF32, kTokens}, DType::kF32, six_layers());
  must(both.gpu->keep_blocks(16 * both.gpu->block_bytes()));
  std::vector<Text> texts;
  texts.push_back(text(20, 1, 60));
  prefill(*both.gpu, texts[0]);
  for (int i = 0; i < 3; ++i) (void)step(*both.gpu, texts);
  scene.fails("graph_launch", device::driver::kLaunchFailed);
  const int32_t last = texts[0].tokens.back();
  const model::Slice slice = texts[0].slice(texts[0].tokens.size() - 1);
  const Choice choice;
  const Content content = texts[0].content();
  const auto failed = both.gpu->step({&last, 1}, {&slice, 1}, {&choice, 1}, {&content, 1});
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error().code == Code::kUnavailable);
  both.gpu->drain();
}

TEST_CASE("the device draws the host's token, from logits of all kinds") {
  Random random(3);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 400; ++round) {
    const size_t vocab = round % 9 == 0 ? 1 + random.below(3) : 1 + random.below(700);
    std::vector<float> logits(vocab);
    const double wide = random.chance(0.5) ? 4 : 40;
    for (float& v : logits) v = static_cast<float>(random.uniform(-wide, wide));
    for (float& v : logits)  // many of the same
      if (round % 4 == 1) v = std::round(v / 3);
    if (round % 10 == 7) logits[random.below(vocab)] = -kInf;
    if (round % 10 == 8) std::fill(logits.begin(), logits.end(), -0.0f), logits[0] = 0;
    model::Draw d{.seed = random.next(), .position = random.below(1000)};
    if (!random.chance(0.1)) d.temperature = random.chance(0.1) ? 1e-9 : random.uniform(0.1, 3);
    if (random.chance(0.5)) d.top_k = static_cast<uint32_t>(1 + random.below(vocab + 3));
    if (random.chance(0.5)) d.top_p = random.chance(0.1) ? 0 : random.uniform();
    const std::vector<int32_t> ends = {0, static_cast<int32_t>(random.below(vocab))};
    CAPTURE(round);
    const Drawn drawn = draw(logits, d, ends, random.chance(0.3), random.below(4));
    CHECK(drawn.by_device == drawn.by_host);
  }
}

TEST_CASE("more equal logits than are sorted at a time draw the host's token") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Random random(8);
  for (int round = 0; round < 48; ++round) {
    std::vector<float> logits(5000 + random.below(5));
    const float values[] = {0.25f, 0.25f + 0x1p-24f, -0.0f, -3.0f};
    const uint64_t kinds = 1 + static_cast<uint64_t>(round % 4);
    for (float& v : logits) v = values[random.below(kinds)];
    if (round % 3 == 1) logits[random.below(logits.size())] = -kInf;
    if (round % 3 == 2) logits[random.below(logits.size())] = std::nanf("");
    model::Draw d{.temperature = random.chance(0.2) ? 1e300 : 0.7, .seed = random.next()};
    if (round % 2 == 0) d.top_k = static_cast<uint32_t>(2 + random.below(logits.size()));
    if (round % 2 == 1 || random.chance(0.5)) d.top_p = random.uniform();
    CAPTURE(round);
    const Drawn drawn = draw(logits, d, {3}, random.chance(0.3), random.below(4));
    CHECK(drawn.by_device == drawn.by_host);
  }
}

// The logits' difference, multiplied by 1 / temperature, rounds to another float than divided.
TEST_CASE("a quotient near the middle of two floats is the host's") {
  struct Near {
    float logit;
    double temperature;
    uint64_t seed;
  };
  for (const Near& n : {Near{-0x1.99953cp+0f, 0x1.b14bf96f67e5ep-1, 35585027},
                        Near{-0x1.67897p+0f, 0x1.28a97edd965dcp+0, 2918596},
                        Near{-0x1.e62d48p+0f, 0x1.f0e48d65abf5p-1, 12153652},
                        Near{-0x1.84149ep+0f, 0x1.9487b4bf34cebp-1, 48749615}}) {
    const model::Draw d{.temperature = n.temperature, .seed = n.seed};
    CAPTURE(n.seed);
    const Drawn drawn = draw({n.logit, 0.0f}, d, {}, false);
    CHECK(drawn.by_device == drawn.by_host);
  }
}

TEST_CASE("a top-p that leaves all tokens draws in the order of ids") {
  Random random(4);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<float> logits(40);
    for (float& v : logits) v = static_cast<float>(random.uniform(-1, 1));
    CAPTURE(seed);
    const model::Draw all{.temperature = 1, .seed = seed};
    model::Draw nearly = all;
    nearly.top_p = 1 - 1e-9;
    const Drawn drawn = draw(logits, nearly, {}, false);
    CHECK(drawn.by_host == draw(logits, all, {}, false).by_host);
    CHECK(drawn.by_device == drawn.by_host);
  }
}

TEST_CASE("NaN logits give a token of the vocabulary") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  for (const std::vector<float>& logits :
       {std::vector<float>{nan, nan, nan}, {nan, 1, 2}, {kInf, kInf, nan}, {-kInf, -kInf, -kInf}})
    for (const double temperature : {0.0, 1.0})
      for (const uint32_t top_k : {0u, 2u}) {
        const model::Draw d{.temperature = temperature, .top_k = top_k, .top_p = 0.5};
        const Drawn drawn = draw(logits, d, {2}, top_k == 0);
        for (const int32_t token : {drawn.by_device, drawn.by_host}) {
          CHECK(token >= 0);
          CHECK(token < 3);
        }
      }
}
